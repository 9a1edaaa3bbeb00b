/** Questions that are asked before something is done. Each gives the answers, or null. */

import { byId, element } from "./element.js";
import { called, bytes as size } from "./words.js";

/**
 * Show a dialog, and wait for its form: the fields, or null where it was given up.
 *
 * A browser tells of `close` a frame later, when the same dialog may have been opened again.
 */
function asked(dialog) {
  const form = dialog.querySelector("form");
  dialog.showModal();
  return new Promise((answer) => {
    form.onsubmit = ({ submitter }) => answer(submitter.value === "" ? null : Object.fromEntries(new FormData(form)));
    dialog.oncancel = () => answer(null);
  });
}

/** Offer the models that the server has, where there are several, and what each can learn by. */
export function offerModels(models) {
  const choice = byId("new-model");
  choice.replaceChildren(...models.map(({ model, adaptation }) =>
    element("option", { value: model, textContent: model, disabled: adaptation === null })));
  choice.value = (models.find(({ adaptation }) => adaptation !== null) ?? models[0]).model;
  choice.onchange = () => offerRules(named(models, choice.value).adaptation);
  choice.onchange();
  byId("new-model-field").hidden = models.length === 1;
}

function named(models, name) {
  return models.find(({ model }) => model === name);
}

/** Offer rules and numbers of experts; null is a model that does not learn. */
function offerRules(adaptation) {
  const rules = (adaptation?.rules ?? []).map((rule, index) =>
    element("option", { value: index, textContent: `${rule.kind.replace("_", " ")}, ${rule.num_fast_weights.toLocaleString("en")} numbers (${size(rule.state_bytes)})` }));
  const experts = (adaptation?.experts ?? []).map((count) =>
    element("option", { value: count, textContent: count, selected: count === adaptation.default_experts }));
  byId("new-rule").replaceChildren(...rules);
  byId("new-experts").replaceChildren(...experts);
}

/** Ask for a new session: the body of its creation, or null. */
export async function askForSession(models) {
  byId("new-name").value = "";
  const given = await asked(byId("new-dialog"));
  if (given === null) return null;
  const rule = named(models, given.model)?.adaptation?.rules[given.rule];
  return {
    ...(models.length > 1 ? { model: given.model } : {}),
    ...(given.name ? { name: given.name } : {}),
    ...(rule ? { adaptation: { kind: rule.kind, num_fast_weights: rule.num_fast_weights, experts: Number(given.experts) } } : {}),
  };
}

/** Ask what a session is to forget: the body of its reset, or null. */
export async function askForReset(session) {
  byId("reset-name").textContent = called(session);
  const given = await asked(byId("reset-dialog"));
  return given && { what: given.what };
}

/** Ask whether a session is to be deleted. */
export async function askToDelete(session) {
  byId("delete-name").textContent = called(session);
  return (await asked(byId("delete-dialog"))) !== null;
}
