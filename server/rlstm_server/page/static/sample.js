/** A text that says the same again and again: what learning saves is seen in the second verse. */

const LINES = [
  "the house that Jack built.",
  "the malt\nThat lay in",
  "the rat,\nThat ate",
  "the cat,\nThat killed",
  "the dog,\nThat worried",
  "the cow with the crumpled horn,\nThat tossed",
  "the maiden all forlorn,\nThat milked",
  "the man all tattered and torn,\nThat kissed",
  "the priest all shaven and shorn,\nThat married",
  "the cock that crowed in the morn,\nThat waked",
  "the farmer sowing his corn,\nThat kept",
];

/** The House That Jack Built, a verse for each line and all lines before it. */
export const SAMPLE = LINES.map((_, verse) => `This is ${LINES.slice(0, verse + 1).reverse().join(" ")}\n`).join("\n");
