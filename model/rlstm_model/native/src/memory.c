/* A memory of the newest tokens: exact counts of what followed contexts, interpolated into what the experts say, and
 * mixed with them.
 *
 * Contexts. The newest n tokens, for some orders n; and for text, where tokens have kinds: the letters of the unfinished
 * word; these and the word before it; these and the one before that; these, the beginning of the line and the newest
 * token; and the shape of the newest 16 tokens, in which letters and digits are alike (as in PAQ: Mahoney 2005). For the
 * tree alone: the shape of 5 tokens; the column and the shape of 2; the column and the token that stands above; and the
 * token that stands above in the same field of a line, with the field's number and its letters.
 *
 * Two chains, of the orders and of the others. p_0 is the Bayes mixture of the experts. For each context that has
 * occurred, in turn, with w(x) the sum of H / (H + age) over the newest times that x followed it:
 *
 *     p_n(x) = (1 - l) p_{n-1}(x) + l w(x) / W
 *
 * l is the share of its bucket (context, occurrences, different successors, whether the newest is old), learned by
 * online expectation maximisation: of the tokens that were read in a bucket, the part that the counts answer for
 * (Jelinek & Mercer 1980; Cappe & Moulines 2009).
 *
 * The blend. p(x) is proportional to the product of the experts' probabilities and the chains', each to the power of a
 * weight (a product of experts: Genest & Zidek 1986; learned online by the gradient of the loss, as context mixing does:
 * Mattern 2012). A weight is the sum of four: one for all tokens, and those of how many contexts of either chain have
 * occurred and whether the last had one successor only, and of the kinds of the newest two tokens.
 *
 * The tree. For vocabularies of up to 256 tokens that blend is mixed once more where contexts have successors, by binary
 * decisions (tree.c).
 *
 * Every distribution is over the whole vocabulary and sums to one. */
#include "rlstm.h"

#include <stdlib.h>

#include "lanes.h"
#include "team.h"
#include "tree.h"

#define MOST_ORDERS 12
#define TEXT 5 /* contexts of text */
#define LINES 4 /* for the tree alone */
#define MARKED (TEXT + LINES)
#define MOST_CONTEXTS (MOST_ORDERS + MARKED)
#define NONE (-1)
#define NOWHERE 0xffff
#define OCCURRENCES 64 /* of a context, the newest, are counted */
#define VISITED 1023   /* places of a bucket that are looked at for them */
#define HALF 100.0     /* tokens, after which an occurrence counts half */
#define OLD 1000       /* tokens, after which the newest occurrence is old */
#define TOTALS 8
#define DISTINCTS 4
#define SHAPE 16
#define BEGINNING 4 /* tokens of a line */
#define CHAINS 2
#define SETS 4

struct rl_memory {
  int32_t capacity, orders, contexts, order[MOST_ORDERS], vocab, mask;
  int64_t read;        /* tokens so far */
  uint8_t *kind;       /* [vocab] */
  int32_t *token;      /* [mask + 1], by place */
  uint8_t *counted;    /* likewise */
  uint32_t *mark[MARKED]; /* [mask + 1] by place: the rest of the hash of a context of text */
  uint16_t *newest[MOST_CONTEXTS], *older[MOST_CONTEXTS]; /* [mask + 1] by bucket, and by place: the chain of a bucket */
  int32_t *slot, *place; /* [vocab] where a token stands in `found` and in `chain`; NONE outside of a call */
  int32_t *found, *chain;
  double *weight, *probability; /* of `found`, of `chain` */
  float *one, *chance;          /* of `chain`: 1, and the probability as what is logarithmed */
  float *row[CHAINS + 1];       /* [padded vocab]: the mixture of the experts, and the chains */
  rl_tree *tree;                /* NULL for a larger vocabulary than it is for */
};

static uint64_t scramble(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 29, x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 32;
}

/* ---- contexts -------------------------------------------------------------------------------------------- */

/* Where a context has its chain: a bucket, NONE for a context that there is not, and what tells it from others there. */
typedef struct {
  int32_t bucket;
  uint32_t mark;
} context;

static uint64_t also(uint64_t hash, uint64_t value) { return scramble(hash + value + 1); }

static int is_letter(const rl_memory *m, int32_t token) {
  const uint8_t kind = m->kind[token];
  return kind == RL_LOWER || kind == RL_UPPER || kind == RL_FOREIGN;
}

/* A token, or which kind of letter or digit it is. */
static uint64_t shape(const rl_memory *m, int32_t token) {
  return is_letter(m, token) || m->kind[token] == RL_DIGIT ? (uint64_t)m->kind[token] : RL_KINDS + (uint64_t)token;
}

/* Of the letters that end `back` tokens before the end; `back` moves to before them. */
static uint64_t word(const rl_memory *m, const int32_t *end, int32_t known, int32_t *back) {
  uint64_t hash = 0;
  while (*back < known && is_letter(m, end[-*back - 1])) hash = also(hash, (uint64_t)end[-++*back]);
  return hash;
}

static uint64_t word_before(const rl_memory *m, const int32_t *end, int32_t known, int32_t *back) {
  while (*back < known && !is_letter(m, end[-*back - 1])) ++*back;
  return word(m, end, known, back);
}

/* Tokens since the last line end; NONE where that is too long ago. */
static int32_t column_of(const rl_memory *m, const int32_t *end, int32_t known) {
  int32_t back = 0;
  while (back < known && m->kind[end[-back - 1]] != RL_NEWLINE) back++;
  return back < known ? back : NONE;
}

static uint64_t shapes(const rl_memory *m, const int32_t *end, int32_t count) {
  uint64_t hash = (uint64_t)count;
  for (int32_t j = 1; j <= count; j++) hash = also(hash, shape(m, end[-j]));
  return hash;
}

static int is_of_a_field(const rl_memory *m, int32_t token) { return is_letter(m, token) || m->kind[token] == RL_DIGIT; }

/* What ends a field stands alone: how many such tokens are among the first of a line, and how many tokens follow. */
typedef struct {
  int32_t number, within;
} field;

static field field_after(const rl_memory *m, const int32_t *line, int32_t count) {
  field f = {0, 0};
  for (int32_t i = 0; i < count; i++)
    if (is_of_a_field(m, line[i]))
      f.within++;
    else
      f.number++, f.within = 0;
  return f;
}

/* What stands there in a line; its end where it has less. */
static int32_t token_at(const rl_memory *m, const int32_t *line, int32_t length, field f) {
  int32_t i = 0;
  for (; i < length && f.number > 0; i++) f.number -= !is_of_a_field(m, line[i]);
  return line[i + f.within < length ? i + f.within : length];
}

static void place_context(const rl_memory *m, context *c, uint64_t hash) {
  const uint64_t mixed = scramble(hash);
  *c = (context){(int32_t)(mixed & (uint64_t)m->mask), (uint32_t)(mixed >> 32)};
}

static void contexts_of_lines(const rl_memory *m, const int32_t *end, int32_t known, int32_t column, uint64_t letters,
                              context c[LINES]) {
  place_context(m, &c[0], shapes(m, end, 5));
  if (column == NONE) return;
  place_context(m, &c[1], also(shapes(m, end, 2), (uint64_t)column));
  const int32_t *line = end - column, *above = line - 1;
  const int32_t length = column_of(m, above, known - column - 1);
  if (length == NONE) return;
  above -= length;
  const field f = field_after(m, line, column);
  place_context(m, &c[2], also(also(2, (uint64_t)above[column < length ? column : length]), (uint64_t)column));
  place_context(m, &c[3], also(also(letters, (uint64_t)token_at(m, above, length, f)), (uint64_t)f.number));
}

/* All contexts that end before `end`, where there are `all` tokens. */
static void contexts_before(const rl_memory *m, const int32_t *end, int64_t all, context c[MOST_CONTEXTS]) {
  const int32_t known = all < RL_REACH ? (int32_t)all : RL_REACH;
  context *text = c + m->orders;
  for (int o = 0; o < m->contexts; o++) c[o] = (context){NONE, 0};
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (int32_t j = 1, o = 0; o < m->orders && j <= known; j++) {
    hash = also(hash, (uint64_t)end[-j]);
    if (j == m->order[o]) place_context(m, &c[o++], hash);
  }
  if (known == 0) return;
  int32_t back = 0;
  const int32_t column = column_of(m, end, known);
  const uint64_t letters = word(m, end, known, &back), last = back > 0 ? 0 : shape(m, end[-1]) + 1;
  const uint64_t here = also(also(TEXT, letters), last);
  place_context(m, &text[0], here);
  place_context(m, &text[1], also(here, word_before(m, end, known, &back)));
  if (column != NONE) {
    uint64_t start = 1; /* of the line */
    for (int32_t i = 0; i < BEGINNING && i < column; i++) start = also(start, (uint64_t)end[i - column]);
    place_context(m, &text[2], also(also(here, start), (uint64_t)end[-1]));
  }
  place_context(m, &text[3], also(here, word_before(m, end, known, &back)));
  if (known >= SHAPE) place_context(m, &text[4], shapes(m, end, SHAPE));
  if (m->tree != NULL && known >= SHAPE) contexts_of_lines(m, end, known, column, letters, &text[TEXT]);
}

/* Ask for what `followed` will wait for: where chains begin, or how they do. A model that was read meanwhile has driven
 * all of it out of the nearest caches. */
static void fetch_chains(const rl_memory *m, const context c[MOST_CONTEXTS], int begun) {
  for (int o = 0; o < m->contexts; o++) {
    if (c[o].bucket == NONE) continue;
    const uint16_t *newest = &m->newest[o][c[o].bucket];
    if (!begun)
      __builtin_prefetch(newest);
    else if (*newest != NOWHERE) {
      __builtin_prefetch(&m->older[o][*newest]), __builtin_prefetch(&m->token[*newest]);
      __builtin_prefetch(o < m->orders ? (const void *)&m->counted[*newest] : &m->mark[o - m->orders][*newest]);
    }
  }
}

/* Read on: the token becomes the newest of its contexts' buckets, where it `counts`. */
static void add(rl_memory *m, int32_t token, int counts, const context c[MOST_CONTEXTS]) {
  const int32_t here = (int32_t)(m->read & m->mask);
  m->token[here] = token;
  m->counted[here] = counts != 0;
  for (int o = 0; counts && o < m->contexts; o++) {
    m->older[o][here] = NOWHERE;
    if (o >= m->orders) m->mark[o - m->orders][here] = c[o].mark;
    if (c[o].bucket == NONE) continue;
    m->older[o][here] = m->newest[o][c[o].bucket];
    m->newest[o][c[o].bucket] = (uint16_t)here;
  }
  m->read++;
}

static int outside(const rl_memory *m, const int32_t *tokens, int64_t length) {
  for (int64_t i = 0; i < length; i++)
    if (tokens[i] < 0 || tokens[i] >= m->vocab) return 1;
  return 0;
}

int32_t rl_memory_add(rl_memory *m, const int32_t *line, int32_t known, int64_t length, const uint8_t *counted) {
  if (outside(m, line, known + length)) return -1;
  for (int64_t i = 0; i < length; i++) {
    context c[MOST_CONTEXTS];
    contexts_before(m, line + known + i, known + i, c);
    add(m, line[known + i], counted[i], c);
  }
  return 0;
}

/* The next token of a line, what is before it, and where it is. */
typedef struct {
  const int32_t *end; /* where it stands */
  int64_t known;      /* tokens before it */
  int64_t ahead;      /* of these, those that are not in the memory */
  int learns;
  context context[MOST_CONTEXTS];
} reading;

/* What followed the newest occurrences of a context. */
typedef struct {
  int32_t total, distinct; /* [0, distinct) of `found` and `weight` */
  int64_t newest;          /* its age in tokens */
  double sum;              /* of all weights */
} followers;

/* Whether the context before a place is the one that ends before `end`: by its tokens or, of text, by its hash. */
static int same(const rl_memory *m, int o, uint16_t place, const int32_t *end, context c) {
  if (o >= m->orders) return m->mark[o - m->orders][place] == c.mark;
  for (int32_t j = 1; j <= m->order[o]; j++)
    if (m->token[(place - j) & m->mask] != end[-j]) return 0;
  return 1;
}

/* Chains go from newer to older places: one that does not has come to a place that was written over. `ahead`: tokens
 * that were read since, and are in no chain. */
static followers followed(rl_memory *m, int o, const reading *r) {
  followers f = {0, 0, 0, 0.0};
  const context c = r->context[o];
  const int32_t *end = r->end;
  const int64_t ahead = r->ahead;
  int64_t age = 0;
  if (c.bucket == NONE) return f;
  uint16_t place = m->newest[o][c.bucket];
  for (int visited = 0; place != NOWHERE && visited < VISITED && f.total < OCCURRENCES; visited++) {
    const int64_t next_age = (m->read - place) & m->mask;
    if (next_age <= age || next_age + ahead > m->capacity || next_age > m->read) break;
    age = next_age;
    if (m->counted[place] && same(m, o, place, end, c)) {
      const int32_t token = m->token[place];
      const double weight = HALF / (HALF + (double)(age + ahead));
      if (m->slot[token] == NONE)
        m->slot[token] = f.distinct, m->found[f.distinct] = token, m->weight[f.distinct++] = 0.0;
      m->weight[m->slot[token]] += weight;
      f.sum += weight;
      if (f.total++ == 0) f.newest = age + ahead;
    }
    place = m->older[o][place];
  }
  for (int32_t i = 0; i < f.distinct; i++) m->slot[m->found[i]] = NONE;
  return f;
}

/* ---- what is learned: shares and weights ----------------------------------------------------------------- */

#define RATE_OF_SHARES 0.02f
#define RATE_OF_WEIGHTS 0.001f
#define GREATEST 4.0f

typedef struct {
  float *tokens; /* [1] that were learned from */
  float *bayes;  /* [experts] */
  float *share;  /* [contexts, TOTALS, DISTINCTS, 2] */
  float *set;    /* [sets, inputs] */
  float *tree;   /* what the tree learns */
  int inputs;
} learned;

static int32_t sets_of(int32_t orders) { return 1 + 2 * (TEXT + 1) + 2 * (orders + 1) + RL_KINDS * RL_KINDS; }

/* How many orders have occurred, and whether the last had one successor. */
static int32_t depths_of(int32_t orders) { return 2 * (orders + 1); }

static int32_t contexts_of(int32_t vocab, int32_t orders) {
  return orders + (vocab > RL_TREE_TOKENS ? TEXT : MARKED);
}

static int32_t shares_of(int32_t orders) { return (orders + TEXT) * TOTALS * DISTINCTS * 2; }

int64_t rl_memory_learned(int32_t vocab, int32_t orders, int32_t experts) {
  const int32_t inputs = experts + CHAINS;
  const int64_t tree = vocab > RL_TREE_TOKENS ? 0 : rl_tree_learned(contexts_of(vocab, orders), inputs, depths_of(orders));
  return 1 + experts + shares_of(orders) + sets_of(orders) * (int64_t)inputs + tree;
}

static learned parts_of(int32_t orders, int32_t experts, float *values) {
  const int inputs = experts + CHAINS;
  float *share = values + 1 + experts, *set = share + shares_of(orders);
  return (learned){values, values + 1, share, set, set + sets_of(orders) * inputs, inputs};
}

void rl_memory_begin(int32_t vocab, int32_t orders, int32_t experts, float *values) {
  const learned l = parts_of(orders, experts, values);
  *l.tokens = 0.0f;
  for (int k = 0; k < experts; k++) l.bayes[k] = 1.0f / (float)experts;
  for (int i = 0; i < shares_of(orders); i++) l.share[i] = 0.5f;
  for (int i = 0; i < sets_of(orders) * l.inputs; i++) l.set[i] = 0.0f;
  /* They sum to one: before anything was counted the blend is the experts' mixture. */
  for (int k = 0; k < experts; k++) l.set[k] = 0.25f / (float)experts;
  l.set[experts] = 0.25f, l.set[experts + 1] = 0.5f;
  if (vocab <= RL_TREE_TOKENS) rl_tree_begin(contexts_of(vocab, orders), l.inputs, depths_of(orders), l.tree);
}

int32_t rl_memory_check(int32_t vocab, int32_t orders, int32_t experts, const float *values) {
  const int64_t all = rl_memory_learned(vocab, orders, experts);
  const learned l = parts_of(orders, experts, (float *)values);
  int bad = !(*l.tokens >= 0.0f && *l.tokens < __builtin_inff());
  for (const float *share = l.bayes; share < l.set; share++) bad |= !(*share >= 0.0f && *share <= 1.0f);
  if (vocab <= RL_TREE_TOKENS) bad |= rl_tree_check(contexts_of(vocab, orders), l.tree);
  for (const float *weight = l.set; weight < values + all; weight++)
    bad |= !(*weight >= -GREATEST && *weight <= GREATEST);
  return bad;
}

static float *share_of(const learned *l, int o, const followers *f) {
  static const int32_t totals[TOTALS - 1] = {1, 2, 3, 5, 9, 19, 49}, distincts[DISTINCTS - 1] = {1, 2, 5};
  int total = 0, distinct = 0;
  while (total < TOTALS - 1 && f->total > totals[total]) total++;
  while (distinct < DISTINCTS - 1 && f->distinct > distincts[distinct]) distinct++;
  return &l->share[((o * TOTALS + total) * DISTINCTS + distinct) * 2 + (f->newest > OLD)];
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* A chain of the contexts [first, last) over `base`, into `out`, both log-probabilities; where it learns the shares
 * follow the target. Of orders the first that has not occurred is the last. Which of the chain's sets of weights: how
 * many contexts have occurred, and whether the last had one successor. */
static int interpolate(rl_memory *m, const learned *l, const reading *r, int first, int last, const float *base,
                       float *out) {
  const int32_t target = *r->end;
  double outside_ = 1.0, own = exp_d(base[target]);
  int32_t chained = 0; /* tokens that followed: their numbers stand in `chain`, their places there in `place` */
  int depth = 0, single = 0;
  for (int o = first; o < last; o++) {
    const followers f = followed(m, o, r);
    if (f.total == 0 && o < m->orders) break;
    if (f.total == 0) continue;
    depth++;
    single = f.distinct == 1;
    if (m->tree != NULL) rl_tree_follow(m->tree, o, f.distinct, m->found, m->weight);
    float *learned_share = share_of(l, o, &f);
    const double share = *learned_share, scale = share / f.sum;
    for (int32_t k = 0; k < chained; k++) m->probability[k] *= 1.0 - share;
    double answer = 0.0;
    for (int32_t i = 0; i < f.distinct; i++) {
      const int32_t token = m->found[i];
      const double more = m->weight[i] * scale;
      if (m->place[token] == NONE) {
        m->place[token] = chained, m->chain[chained] = token;
        m->probability[chained++] = exp_d(base[token]) * outside_ * (1.0 - share);
      }
      m->probability[m->place[token]] += more;
      if (token == target) answer = more;
    }
    outside_ *= 1.0 - share;
    own = own * (1.0 - share) + answer;
    if (r->learns) *learned_share += RATE_OF_SHARES * ((own > 0.0 ? (float)(answer / own) : 0.0f) - *learned_share);
  }
  const float shift = depth > 0 ? (float)log_d(outside_) : 0.0f;
  for (int32_t v = 0; v < m->vocab; v++) out[v] = base[v] + shift;
  for (int32_t k = 0; k < chained; k++) m->chance[k] = (float)m->probability[k];
  rl_chosen_kernels()->log_odds(chained, m->one, m->chance, -RL_LEAST, m->chance);
  for (int32_t k = 0; k < chained; k++) {
    out[m->chain[k]] = m->chance[k];
    m->place[m->chain[k]] = NONE;
  }
  return 2 * depth + single;
}

#define RATE_OF_DECISIONS 0.0004f
#define SOON 1000.0f /* tokens */

/* The tree's rate: four times as high at first. */
static float rate_of(const learned *l, const reading *r) {
  return r->learns ? RATE_OF_DECISIONS * (1.0f + 3.0f / (1.0f + *l->tokens / SOON)) : 0.0f;
}

static uint8_t kind_before(const rl_memory *m, const reading *r, int32_t back) {
  return r->known < back ? RL_NEWLINE : m->kind[r->end[-back]];
}

/* The blend of rows of log-probabilities, into `out`, by the sum of the chosen sets, which follow the target. */
static void blend(rl_memory *m, const learned *l, const reading *r, const float *const *row, const int32_t chosen[SETS],
                  float *out) {
  float weights[MOST_INPUTS] = {0}, expected[MOST_INPUTS];
  for (int s = 0; s < SETS; s++)
    for (int k = 0; k < l->inputs; k++) weights[k] += l->set[chosen[s] * l->inputs + k];
  rl_chosen_kernels()->blend(l->inputs, m->vocab, row, weights, out, expected);
  if (!r->learns) return;
  for (int k = 0; k < l->inputs; k++) {
    const float value = row[k][*r->end] < RL_LEAST ? RL_LEAST : row[k][*r->end];
    for (int s = 0; s < SETS; s++) {
      float *weight = &l->set[chosen[s] * l->inputs + k];
      const float next = *weight + RATE_OF_WEIGHTS * (value - expected[k]);
      *weight = next > GREATEST ? GREATEST : next < -GREATEST ? -GREATEST : next;
    }
  }
}

/* The experts' mixture follows the target, by Bayes' rule with a share of 1 / (t + 2) (Herbster & Warmuth 1998). */
static void follow(const learned *l, int experts, const float *const *given, const float *mixed, int32_t target) {
  const float share = 1.0f / (*l->tokens + 2.0f);
  double total = 0.0;
  *l->tokens += 1.0f;
  for (int k = 0; k < experts; k++) total += l->bayes[k] * exp_d((double)given[k][target] - mixed[target]);
  for (int k = 0; k < experts; k++) {
    const double own = l->bayes[k] * exp_d((double)given[k][target] - mixed[target]) / total;
    l->bayes[k] = total > 0.0 ? (1.0f - share) * (float)own + share / (float)experts : 1.0f / (float)experts;
  }
}

/* Whether an expert computed no distribution of the token. */
static int broken(int experts, const float *const *given, int32_t target) {
  for (int k = 0; k < experts; k++)
    if (!(given[k][target] < __builtin_inff())) return 1;
  return 0;
}

static void read_token(rl_memory *m, const learned *l, int experts, const float *const *given, reading *r, float *out,
                       float *weights_only) {
  const rl_token token = {experts, m->vocab, *r->end, given, l->bayes};
  contexts_before(m, r->end, r->known, r->context);
  if (broken(experts, given, token.target)) { /* nor do they and a memory together */
    for (int32_t v = 0; v < m->vocab; v++) out[v] = __builtin_nanf("");
    *weights_only = __builtin_nanf("");
    return;
  }
  fetch_chains(m, r->context, 0);
  rl_chosen_kernels()->distribution(&token, NULL, NULL, m->row[0]);
  fetch_chains(m, r->context, 1);
  *weights_only = m->row[0][*r->end];
  const int text = interpolate(m, l, r, m->orders, m->orders + TEXT, m->row[0], m->row[1]);
  const int newest = interpolate(m, l, r, 0, m->orders, m->row[0], m->row[2]);
  const float *row[MOST_INPUTS];
  for (int k = 0; k < experts; k++) row[k] = given[k];
  row[experts] = m->row[1], row[experts + 1] = m->row[2];
  const int after_text = 1 + 2 * (TEXT + 1), after_newest = after_text + 2 * (m->orders + 1);
  const int32_t chosen[SETS] = {0, 1 + text, after_text + newest,
                                after_newest + RL_KINDS * kind_before(m, r, 1) + kind_before(m, r, 2)};
  blend(m, l, r, row, chosen, out);
  static const int32_t group[RL_KINDS] = {0, 0, 1, 2, 2, 3, 0, 3}; /* letters, digits, blanks, others */
  const int32_t kinds = 4 * group[kind_before(m, r, 1)] + group[kind_before(m, r, 2)];
  for (int o = m->orders + TEXT; o < m->contexts; o++)
    rl_tree_follow(m->tree, o, followed(m, o, r).distinct, m->found, m->weight);
  if (m->tree != NULL) rl_tree_mix(m->tree, row, depths_of(m->orders), newest, kinds, *r->end, rate_of(l, r), out);
  if (r->learns) follow(l, experts, given, m->row[0], *r->end);
}

void rl_recall_one(rl_recall *recall) {
  rl_memory *m = recall->memory;
  const int experts = recall->experts, known = recall->known, mode = recall->mode;
  recall->code = -1;
  if (experts < 1 || experts + CHAINS > MOST_INPUTS) return;
  if (outside(m, recall->line, (int64_t)known + recall->length)) return;
  const learned l = parts_of(m->orders, experts, recall->values);
  const int64_t stride = ((int64_t)m->vocab + RL_LANES - 1) / RL_LANES * RL_LANES;
  if (m->tree != NULL) rl_tree_open(m->tree, l.inputs, l.tree);
  for (int32_t t = 0; t < recall->length; t++) {
    const float *given[MOST_INPUTS];
    for (int k = 0; k < experts; k++) given[k] = recall->log_probs[k] + t * stride;
    const int64_t looked_at = mode == RL_LOOK ? t : 0;
    reading r = {recall->line + known + t, (int64_t)known + t, recall->ahead + looked_at, mode == RL_LEARN, {{0}}};
    read_token(m, &l, experts, given, &r, recall->out + t * stride, recall->weights_only + t);
    if (mode != RL_LOOK) add(m, *r.end, r.learns, r.context);
  }
  recall->code = 0;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

rl_memory *rl_memory_new(int32_t capacity, int32_t vocab, int32_t orders, const int32_t *order, const uint8_t *kind) {
  if (orders < 1 || orders > MOST_ORDERS || capacity < 1 || vocab < 1) return NULL;
  if (order[orders - 1] > RL_REACH || capacity > (1 << 15) - 1 - RL_REACH) return NULL;
  for (int o = 0; o < orders; o++)
    if (order[o] < 1 || (o > 0 && order[o] <= order[o - 1])) return NULL;
  for (int32_t v = 0; v < vocab; v++)
    if (kind[v] >= RL_KINDS) return NULL;
  rl_memory *m = calloc(1, sizeof *m);
  if (m == NULL) return NULL;
  m->capacity = capacity, m->vocab = vocab, m->orders = orders, m->contexts = contexts_of(vocab, orders);
  memcpy(m->order, order, orders * sizeof *order);
  int32_t size = 64;
  while (size < capacity + RL_REACH + 1) size *= 2;
  m->mask = size - 1;
  const int64_t padded = ((int64_t)vocab + RL_LANES - 1) / RL_LANES * RL_LANES;
  m->kind = malloc(vocab), m->token = malloc(size * sizeof *m->token), m->counted = calloc(size, 1);
  m->slot = malloc(vocab * sizeof *m->slot), m->place = malloc(vocab * sizeof *m->place);
  m->found = malloc(OCCURRENCES * sizeof *m->found), m->weight = malloc(OCCURRENCES * sizeof *m->weight);
  m->chain = malloc(MOST_CONTEXTS * OCCURRENCES * sizeof *m->chain);
  m->probability = malloc(MOST_CONTEXTS * OCCURRENCES * sizeof *m->probability);
  m->one = malloc(MOST_CONTEXTS * OCCURRENCES * sizeof *m->one);
  m->chance = calloc(MOST_CONTEXTS * OCCURRENCES, sizeof *m->chance);
  int ok = m->kind && m->token && m->counted && m->slot && m->place && m->found && m->weight;
  ok = ok && m->chain && m->probability && m->one && m->chance;
  for (int i = 0; i <= CHAINS; i++) ok = (m->row[i] = calloc(padded, sizeof(float))) && ok;
  for (int i = 0; i < m->contexts - orders; i++) ok = (m->mark[i] = calloc(size, sizeof(uint32_t))) && ok;
  for (int o = 0; o < m->contexts; o++) {
    m->newest[o] = malloc(size * sizeof *m->newest[o]), m->older[o] = malloc(size * sizeof *m->older[o]);
    ok = ok && m->newest[o] && m->older[o];
    if (m->newest[o]) memset(m->newest[o], 0xff, size * sizeof *m->newest[o]);
    if (m->older[o]) memset(m->older[o], 0xff, size * sizeof *m->older[o]);
  }
  if (vocab <= RL_TREE_TOKENS) ok = (m->tree = rl_tree_new(vocab, m->contexts)) && ok;
  if (!ok) return rl_memory_free(m), NULL;
  memcpy(m->kind, kind, vocab);
  for (int i = 0; i < MOST_CONTEXTS * OCCURRENCES; i++) m->one[i] = 1.0f;
  for (int32_t v = 0; v < vocab; v++) m->slot[v] = m->place[v] = NONE;
  return m;
}

void rl_memory_free(rl_memory *m) {
  if (m == NULL) return;
  for (int o = 0; o < m->contexts; o++) free(m->newest[o]), free(m->older[o]);
  for (int i = 0; i <= CHAINS; i++) free(m->row[i]);
  for (int i = 0; i < MARKED; i++) free(m->mark[i]);
  free(m->kind), free(m->token), free(m->counted), free(m->slot), free(m->place), free(m->found), free(m->weight);
  free(m->chain), free(m->probability), free(m->one), free(m->chance), rl_tree_free(m->tree), free(m);
}
