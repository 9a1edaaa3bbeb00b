/** The page: what is shown, and what happens when something is pressed. */

import { Access } from "./access.js";
import { Announcer } from "./announcer.js";
import { Composer } from "./composer.js";
import { Curves } from "./curves.js";
import { askForReset, askForSession, askToDelete, offerModels } from "./dialogs.js";
import { byId } from "./element.js";
import { heard, showFigures } from "./figures.js";
import { HeatMap } from "./heat.js";
import { Inspector } from "./inspector.js";
import { Notice } from "./notice.js";
import { Pointer } from "./pointer.js";
import { Reading } from "./reading.js";
import { SAMPLE } from "./sample.js";
import { Scale } from "./scale.js";
import { Problem, ask, newOperation } from "./server.js";
import { SessionList } from "./sessions.js";
import { called, whole } from "./words.js";

const FORGOT = { both: "forgot what it learned and what it read", fast_weights: "forgot what it learned", recurrent: "forgot what it read" };
const SESSION = /^#([a-z0-9]{1,64})$/;

class Page {
  #info = null;
  #scale = new Scale(8);
  #readings = new Map();
  #open = null;
  /** The token that was chosen in what is open. */
  #pointed = null;
  #access = new Access(() => location.reload());
  #announcer = new Announcer(byId("status"));
  #notice = new Notice();
  #heat = new HeatMap(byId("map"), byId("rows"));
  #curves = new Curves();
  #inspector = new Inspector((cell) => this.#point(cell, { isFollowed: true }));
  #list = new SessionList((verb, session) => this.#act(verb, session));
  #composer = new Composer({
    give: (text, options) => this.#give(text, options),
    stopped: (reading) => this.#stop(reading),
    refused: (title, detail) => this.#notice.show(new Problem({ status: 0, title, detail })),
  });

  constructor() {
    new Pointer(byId("map"), { heat: this.#heat, inspector: this.#inspector, transcript: () => this.#open?.transcript });
    byId("views").addEventListener("change", () => this.#colour());
    byId("new-session").addEventListener("click", () => this.#create());
    byId("more-sessions").addEventListener("click", () => this.#attempt(() => this.#list.more()));
    byId("sample").addEventListener("click", () => {
      this.#composer.put(SAMPLE);
      this.#composer.focus();
    });
    window.addEventListener("beforeunload", (event) => {
      if ([...this.#readings.values()].some(({ outbox }) => outbox.isBusy)) event.preventDefault();
    });
    byId("sessions-details").open = matchMedia("(min-width: 48rem)").matches;
    this.#draw();
  }

  /** Ask the server who it is, and show its sessions. */
  start() {
    return this.#attempt(async () => {
      this.#info = await ask("GET", "info");
      this.#info.models ??= [this.#info]; // of a server that is not updated yet
      offerModels(this.#info.models);
      await this.#list.refresh();
      const [, id] = SESSION.exec(location.hash) ?? [];
      if (id) this.#show(this.#readingOf(await ask("GET", `sessions/${id}`)));
      else this.#draw();
    });
  }

  /** Do something that may be refused: a key is asked for, and anything else is shown. */
  async #attempt(action, session = null) {
    this.#notice.hide();
    try {
      return await action();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      const again = () => this.#attempt(action, session);
      if (problem.isGone && session !== null) this.#lose(session);
      if (problem.status === 401) this.#access.need(again);
      else this.#notice.show(problem, { again: problem.isPassing ? again : null, more: problem.retryAfter ? `It asks to wait ${whole(problem.retryAfter)} s.` : "" });
      return false;
    }
  }

  async #act(verb, session) {
    const operation = newOperation();
    if (verb === "open") await this.#attempt(async () => this.#show(this.#readingOf(await ask("GET", `sessions/${session.id}`))), session);
    if (verb === "fork") await this.#attempt(() => this.#fork(session, operation), session);
    if (verb === "reset") {
      const body = await askForReset(session);
      if (body !== null) await this.#attempt(() => this.#reset(session, body, operation), session);
    }
    if (verb === "delete" && (await askToDelete(session))) await this.#attempt(() => this.#delete(session), session);
  }

  async #create() {
    const body = await askForSession(this.#info?.models ?? []);
    const operation = newOperation();
    if (body !== null) await this.#attempt(() => this.#made(body, operation));
  }

  async #made(body, operation) {
    const session = await ask("POST", "sessions", { body, operation });
    this.#list.put(session);
    this.#show(this.#readingOf(session));
    this.#composer.focus();
    return true;
  }

  async #fork(session, operation) {
    const made = await ask("POST", `sessions/${session.id}/fork`, { body: {}, operation });
    const transcript = this.#readings.get(session.id)?.transcript.copy();
    transcript?.meet(made.position);
    transcript?.mark(`forked from ${called(session)}`);
    this.#list.put(made);
    this.#show(this.#readingOf(made, transcript));
    this.#announcer.say(`Forked ${called(session)}; the fork is open.`);
  }

  async #reset(session, body, operation) {
    const reset = await ask("POST", `sessions/${session.id}/reset`, { body, operation });
    const reading = this.#readingOf(reset);
    reading.transcript.mark(FORGOT[body.what]);
    reading.transcript.weigh(reset.weights);
    this.#list.put(reset);
    if (reading === this.#open) this.#grow();
    this.#announcer.say(`${called(session)} ${FORGOT[body.what]}.`);
  }

  async #delete(session) {
    await ask("DELETE", `sessions/${session.id}`);
    await this.#lose(session);
    if (session.id === this.#open?.session.id) this.#show(null);
    byId("new-session").focus();
    this.#announcer.say(`${called(session)} is deleted.`);
  }

  /** Take leave of a session that is no longer there. What was read of it stays in view, what was not is kept. */
  async #lose({ id }) {
    this.#list.remove(id);
    const reading = this.#readings.get(id);
    if (!reading) return;
    this.#readings.delete(id);
    reading.isGone = true;
    reading.transcript.mark("the session is gone");
    this.#composer.put((await reading.outbox.stop()).text);
    if (reading === this.#open) this.#grow();
  }

  /** What a session is computed with; before one is open, or for one of another server, the first. */
  #modelOf(session) {
    const isOf = (model) => model.fingerprint === session?.fingerprint && model.adaptation_fingerprint === session?.adaptation_fingerprint;
    return this.#info.models.find(isOf) ?? this.#info.models[0];
  }

  #readingOf(session, transcript = null) {
    const known = this.#readings.get(session.id);
    if (known) {
      if (!known.outbox.isBusy) known.update(session);
      return known;
    }
    const reading = new Reading(session, {
      transcript,
      coversAll: !["words", "pieces"].includes(this.#modelOf(session).vocabulary.kind),
      grown: (one) => this.#grown(one),
      changed: (one) => this.#changed(one),
    });
    this.#readings.set(session.id, reading);
    return reading;
  }

  async #give(text, options) {
    const operation = newOperation();
    if ((this.#open === null || this.#open.isGone) && !(await this.#attempt(() => this.#made({}, operation)))) return false;
    this.#open.outbox.add(text, options);
    return true;
  }

  async #stop(reading) {
    this.#notice.hide();
    const { text, isUnsure } = await reading.outbox.stop();
    this.#composer.put(text);
    this.#announcer.say(`Stopped. ${text ? "What was not read is in the box again." : ""} ${isUnsure ? "Its beginning may have been read." : ""}`);
  }

  #grown(reading) {
    this.#list.put(reading.session);
    if (reading === this.#open) this.#grow();
    this.#announcer.say(heard(reading.session));
  }

  /** Text on its way is somewhere else: further, paused, or refused. */
  #changed(reading) {
    const { outbox } = reading;
    if (reading === this.#open) this.#composer.show(reading);
    if (outbox.state === "idle" && !reading.isGone) this.#refresh(reading);
    if (outbox.state === "waiting") this.#announcer.say(outbox.problem.title);
    if (outbox.state !== "failed") return;
    const { problem } = outbox;
    if (problem.status === 401) this.#access.need(() => outbox.resume());
    else if (problem.isGone) {
      this.#lose(reading.session);
      this.#notice.show(problem, { more: "What was not read is in the box again." });
    } else this.#notice.show(problem, { again: () => outbox.resume(), more: "The text is kept: Stop puts what was not read into the box again." });
  }

  /** Ask once more when all is read: answers to appends leave out how large the state is. */
  async #refresh(reading) {
    const session = await ask("GET", `sessions/${reading.session.id}`).catch(() => null);
    if (session === null || reading.outbox.isBusy || reading.isGone) return;
    reading.update(session);
    this.#list.put(session);
    if (reading === this.#open) this.#tell();
  }

  #show(reading) {
    this.#open = reading;
    history.replaceState(null, "", reading === null ? "#" : `#${reading.session.id}`);
    this.#list.markOpen(reading?.session.id ?? null);
    this.#composer.show(reading);
    this.#draw();
    if (reading?.outbox.state === "failed") this.#changed(reading);
    return true;
  }

  /** Draw what is open from its beginning. */
  #draw() {
    const transcript = this.#open?.transcript ?? null;
    this.#pointed = null;
    if (this.#info !== null) this.#name(this.#modelOf(this.#open?.session));
    this.#inspector.show(transcript, this.#scale);
    this.#curves.show(transcript, this.#open?.session.adaptation);
    this.#colour();
    this.#tell();
  }

  /** Say which model it is; colours go up to what a byte or word costs of which nothing is known. */
  #name({ model, vocabulary }) {
    this.#scale = new Scale(vocabulary.uniform_bits);
    byId("model").textContent = `${model} on ${this.#info.device} · ${vocabulary.kind} · version ${this.#info.version}`;
  }

  /** Draw the text in the colours of the view that is chosen. */
  #colour() {
    const view = document.querySelector("input[name=view]:checked").value;
    this.#scale.drawLegend(byId("legend"), view);
    this.#heat.show(this.#open?.transcript ?? null, view, this.#scale);
    if (this.#pointed !== null) this.#point(this.#pointed, { isFollowed: true });
  }

  #grow() {
    this.#tell();
    this.#heat.grow();
    this.#inspector.grow();
    this.#curves.grow();
  }

  #tell() {
    byId("empty").hidden = (this.#open?.transcript.blocks.length ?? 0) > 0;
    showFigures(this.#open?.session ?? null);
  }

  #point(cell, options) {
    this.#pointed = cell;
    this.#heat.point(cell, options);
    this.#curves.point(this.#open.transcript.places[cell]);
  }
}

new Page().start();
