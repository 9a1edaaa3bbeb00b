/* A memory of the newest tokens: exact n-gram counts, interpolated into what the experts say, and mixed with them.
 *
 * The chain. p_0 is the Bayes mixture of the experts. For each order n, ascending, whose context has been seen, with
 * c(x) the times that x followed it, N their sum and D how many tokens did:
 *
 *     p_n(x) = (1 - l) p_{n-1}(x) + l max(c(x) - d, 0) / (N - d D)
 *
 * l is the share of its bucket (order, N, D), learned by online expectation maximisation: of the tokens that were read
 * in a bucket, the part that the counts answer for (Jelinek & Mercer 1980; Dempster et al. 1977).
 *
 * The blend. p(x) is proportional to the product of the experts' probabilities and the chain's, each to the power of
 * a weight (a product of experts: Genest & Zidek 1986; learned online by the gradient of the loss, as context mixing
 * does: Mattern 2012). There are three sets of weights, chosen by how many orders have seen the context and whether it
 * had one successor only; by the newest token; and one for all. Their three blends are averaged as log-probabilities.
 *
 * Every distribution is over the whole vocabulary and sums to one. What is found is compared with the tokens
 * themselves: no hash stands for a context. */
#include "rlstm.h"

#include <stdlib.h>

#include "lanes.h"
#include "team.h"

#define MOST_ORDERS 12
#define NONE (-1)
#define TOTALS 8
#define DISTINCTS 4
#define PREVIOUS 256
#define SETS 3

/* What followed one context. `place`: of the newest token that did. */
typedef struct {
  int64_t place;
  int32_t total, distinct, first, next;
} context;

typedef struct {
  int32_t token, count, next;
} follower;

struct rl_memory {
  int32_t capacity, orders, order[MOST_ORDERS], vocab, longest;
  int64_t read, base; /* tokens so far; the place of token[0] */
  int32_t *token, room;
  uint8_t *counted;
  int32_t *head[MOST_ORDERS], buckets;
  context *contexts;
  follower *followers;
  int32_t free_context, free_follower;
  int32_t *slot; /* [vocab] where a follower stands among the found ones, NONE outside of a call */
  int32_t *found;
  double *probability;
  float *row[SETS + 2]; /* [padded vocab]: the mixture of the experts, the chain, and blends */
};

static const int32_t *behind(const rl_memory *m, int64_t place) { return m->token + (place - m->base); }

static uint64_t scramble(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 29, x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 32;
}

/* Where the number of the context that ends before `end` stands: in its bucket, or in the one before it there. */
static int32_t *find(rl_memory *m, int o, const int32_t *end) {
  const int32_t length = m->order[o];
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (int32_t j = 1; j <= length; j++) hash = scramble(hash + (uint64_t)end[-j] + 1);
  int32_t *link = &m->head[o][hash & (uint64_t)(m->buckets - 1)];
  while (*link != NONE &&
         memcmp(behind(m, m->contexts[*link].place) - length, end - length, length * sizeof *end) != 0)
    link = &m->contexts[*link].next;
  return link;
}

static int32_t *find_follower(rl_memory *m, context *c, int32_t token) {
  int32_t *link = &c->first;
  while (*link != NONE && m->followers[*link].token != token) link = &m->followers[*link].next;
  return link;
}

static void count(rl_memory *m, int64_t place) {
  const int32_t token = *behind(m, place);
  for (int o = 0; o < m->orders && place >= m->order[o]; o++) {
    int32_t *link = find(m, o, behind(m, place));
    if (*link == NONE) {
      const int32_t fresh = m->free_context;
      m->free_context = m->contexts[fresh].next;
      m->contexts[fresh] = (context){.first = NONE, .next = NONE};
      *link = fresh;
    }
    context *c = &m->contexts[*link];
    int32_t *own = find_follower(m, c, token);
    if (*own == NONE) {
      const int32_t fresh = m->free_follower;
      m->free_follower = m->followers[fresh].next;
      m->followers[fresh] = (follower){token, 0, c->first};
      c->first = fresh;
      c->distinct++;
      own = &c->first;
    }
    m->followers[*own].count++;
    c->total++;
    c->place = place;
  }
}

static void forget(rl_memory *m, int64_t place) {
  const int32_t token = *behind(m, place);
  for (int o = 0; o < m->orders && place >= m->order[o]; o++) {
    int32_t *link = find(m, o, behind(m, place));
    const int32_t number = *link;
    context *c = &m->contexts[number];
    int32_t *own = find_follower(m, c, token);
    c->total--;
    if (--m->followers[*own].count == 0) {
      const int32_t gone = *own;
      *own = m->followers[gone].next;
      m->followers[gone].next = m->free_follower;
      m->free_follower = gone;
      c->distinct--;
    }
    if (c->total == 0) {
      *link = c->next;
      c->next = m->free_context;
      m->free_context = number;
    }
  }
}

static void add(rl_memory *m, int32_t token, int counts) {
  const int64_t oldest = m->read - m->capacity;
  if (oldest >= 0 && m->counted[oldest - m->base]) forget(m, oldest);
  if (m->read - m->base == m->room) {
    const int32_t kept = m->capacity + m->longest;
    memmove(m->token, m->token + m->room - kept, kept * sizeof *m->token);
    memmove(m->counted, m->counted + m->room - kept, kept);
    m->base += m->room - kept;
  }
  m->token[m->read - m->base] = token;
  m->counted[m->read - m->base] = counts != 0;
  if (counts) count(m, m->read);
  m->read++;
}

static int outside(const rl_memory *m, const int32_t *tokens, int64_t length) {
  for (int64_t i = 0; i < length; i++)
    if (tokens[i] < 0 || tokens[i] >= m->vocab) return 1;
  return 0;
}

int32_t rl_memory_add(rl_memory *m, const int32_t *tokens, int64_t length, const uint8_t *counted) {
  if (outside(m, tokens, length)) return -1;
  for (int64_t i = 0; i < length; i++) add(m, tokens[i], counted[i]);
  return 0;
}

/* ---- what is learned: shares and weights ----------------------------------------------------------------- */

typedef struct {
  float answered, seen;
} bucket;

typedef struct {
  float *bayes;   /* [experts] */
  bucket *bucket; /* [orders, TOTALS, DISTINCTS] */
  float *set;     /* [sets, inputs + 1], the last is how often it was used */
  int inputs;
} learned;

static int32_t sets_of(int32_t orders) { return 2 * (orders + 1) + PREVIOUS + 1; }

static int32_t buckets_of(int32_t orders) { return orders * TOTALS * DISTINCTS; }

int64_t rl_memory_learned(int32_t orders, int32_t experts) {
  return experts + 2 * (int64_t)buckets_of(orders) + sets_of(orders) * (int64_t)(experts + 2);
}

static learned parts_of(int32_t orders, int32_t experts, float *values) {
  float *buckets = values + experts;
  return (learned){values, (bucket *)buckets, buckets + 2 * buckets_of(orders), experts + 1};
}

void rl_memory_begin(int32_t orders, int32_t experts, float *values) {
  const learned l = parts_of(orders, experts, values);
  for (int k = 0; k < experts; k++) l.bayes[k] = 1.0f / (float)experts;
  for (int i = 0; i < buckets_of(orders); i++) l.bucket[i] = (bucket){2.0f, 4.0f};
  for (int i = 0; i < sets_of(orders); i++)
    for (int k = 0; k <= l.inputs; k++) l.set[i * (l.inputs + 1) + k] = k == l.inputs - 1 ? 1.0f : 0.0f;
}

static bucket *bucket_of(const learned *l, int o, const context *c) {
  static const int32_t totals[TOTALS - 1] = {1, 2, 3, 5, 9, 19, 49}, distincts[DISTINCTS - 1] = {1, 2, 5};
  int total = 0, distinct = 0;
  while (total < TOTALS - 1 && c->total > totals[total]) total++;
  while (distinct < DISTINCTS - 1 && c->distinct > distincts[distinct]) distinct++;
  return &l->bucket[(o * TOTALS + total) * DISTINCTS + distinct];
}

/* ---- reading --------------------------------------------------------------------------------------------- */

#define DISCOUNT 0.3
#define MOST_SEEN 500.0f
#define GREATEST 4.0f

/* The contexts before `end`, of `known` tokens, ascending; how many there are. */
static int matched(rl_memory *m, const int32_t *end, int64_t known, context **seen) {
  int count_ = 0;
  for (int o = 0; o < m->orders && known >= m->order[o]; o++) {
    const int32_t number = *find(m, o, end);
    if (number == NONE) break;
    seen[count_++] = &m->contexts[number];
  }
  return count_;
}

/* The chain over `base`, into `out`, both log-probabilities; with `learns` the buckets follow the target. */
static void interpolate(rl_memory *m, const learned *l, context *const *seen, int orders, const float *base,
                        int32_t target, float *out, int learns) {
  double share[MOST_ORDERS], outside_ = 1.0, own = exp_d(base[target]);
  int32_t found = 0;
  for (int o = 0; o < orders; o++) {
    const bucket *b = bucket_of(l, o, seen[o]);
    share[o] = (double)b->answered / b->seen;
    outside_ *= 1.0 - share[o];
  }
  const float shift = (float)log_d(outside_);
  for (int32_t v = 0; v < m->vocab; v++) out[v] = base[v] + shift;
  /* All that followed a longer context followed the shortest. */
  for (int32_t i = seen[0]->first; i != NONE; i = m->followers[i].next) {
    const int32_t v = m->followers[i].token;
    m->slot[v] = found, m->found[found] = v;
    m->probability[found++] = exp_d(base[v]);
  }
  for (int o = 0; o < orders; o++) {
    const double scale = share[o] / (seen[o]->total - DISCOUNT * seen[o]->distinct), before = own;
    for (int32_t k = 0; k < found; k++) m->probability[k] *= 1.0 - share[o];
    own *= 1.0 - share[o];
    for (int32_t i = seen[o]->first; i != NONE; i = m->followers[i].next) {
      const double more = (m->followers[i].count - DISCOUNT) * scale;
      m->probability[m->slot[m->followers[i].token]] += more;
      if (m->followers[i].token == target) own += more;
    }
    if (!learns) continue;
    bucket *b = bucket_of(l, o, seen[o]);
    b->answered += own > 0.0 ? (float)((own - before * (1.0 - share[o])) / own) : 0.0f;
    b->seen += 1.0f;
    if (b->seen > MOST_SEEN) b->answered *= MOST_SEEN / b->seen, b->seen = MOST_SEEN;
  }
  for (int32_t k = 0; k < found; k++) {
    out[m->found[k]] = (float)log_d(m->probability[k]);
    m->slot[m->found[k]] = NONE;
  }
}

static double root(double x) { return exp_d(0.5 * log_d(x)); }

static void follow(float *weights, int inputs, const float *const *row, const float *expected, int32_t target) {
  const float used = weights[inputs] += 1.0f;
  const float rate = (float)(0.005 + 0.03 / root(used));
  for (int k = 0; k < inputs; k++) {
    const float value = row[k][target] < RL_LEAST ? RL_LEAST : row[k][target];
    const float weight = weights[k] + rate * (value - expected[k]);
    weights[k] = weight > GREATEST ? GREATEST : weight < -GREATEST ? -GREATEST : weight;
  }
}

static void read_token(rl_memory *m, const learned *l, int experts, const float *const *given, const int32_t *end,
                       int64_t known, int32_t target, float *out, int learns) {
  const rl_kernels *kernels = rl_chosen_kernels();
  context *seen[MOST_ORDERS];
  const int depth = matched(m, end, known, seen);
  float *mixed = m->row[0], *chain = m->row[1], *blend[SETS];
  const rl_token token = {experts, m->vocab, target, given, l->bayes};
  int32_t rank;
  float entropy;
  kernels->distribution(&token, &rank, &entropy, mixed);
  if (depth > 0)
    interpolate(m, l, seen, depth, mixed, target, chain, learns);
  else
    memcpy(chain, mixed, m->vocab * sizeof *mixed);
  const float *row[MOST_INPUTS];
  for (int k = 0; k < experts; k++) row[k] = given[k];
  row[experts] = chain;
  const int single = depth > 0 && seen[depth - 1]->distinct == 1, first = 2 * (m->orders + 1);
  const int chosen[SETS] = {2 * depth + single, first + (known > 0 ? end[-1] % PREVIOUS : 0), first + PREVIOUS};
  for (int s = 0; s < SETS; s++) {
    float *weights = l->set + (int64_t)chosen[s] * (l->inputs + 1), expected[MOST_INPUTS];
    blend[s] = m->row[2 + s];
    kernels->blend(l->inputs, m->vocab, row, weights, blend[s], expected);
    if (learns) follow(weights, l->inputs, row, expected, target);
  }
  static const float third[SETS] = {1.0f / SETS, 1.0f / SETS, 1.0f / SETS};
  kernels->blend(SETS, m->vocab, (const float *const *)blend, third, out, NULL);
  if (!learns) return;
  double total = 0.0;
  for (int k = 0; k < experts; k++) total += l->bayes[k] * exp_d((double)given[k][target] - mixed[target]);
  const float tokens = l->set[(int64_t)chosen[SETS - 1] * (l->inputs + 1) + l->inputs], share = 1.0f / (tokens + 1.0f);
  for (int k = 0; k < experts; k++) {
    const double own = l->bayes[k] * exp_d((double)given[k][target] - mixed[target]) / total;
    l->bayes[k] = total > 0.0 ? (1.0f - share) * (float)own + share / (float)experts : 1.0f / (float)experts;
  }
}

int32_t rl_memory_read(rl_memory *m, int32_t experts, int64_t stride, const float *const *log_probs, int32_t length,
                       const int32_t *line, int32_t known, float *values, float *out, int32_t mode) {
  if (experts < 1 || experts >= MOST_INPUTS || outside(m, line, (int64_t)known + length)) return -1;
  const learned l = parts_of(m->orders, experts, values);
  for (int32_t t = 0; t < length; t++) {
    const float *given[MOST_INPUTS];
    for (int k = 0; k < experts; k++) given[k] = log_probs[k] + t * stride;
    const int32_t *end = line + known + t;
    read_token(m, &l, experts, given, end, (int64_t)known + t, *end, out + t * stride, mode == RL_LEARN);
    if (mode != RL_LOOK) add(m, *end, mode == RL_LEARN);
  }
  return 0;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

rl_memory *rl_memory_new(int32_t capacity, int32_t vocab, int32_t orders, const int32_t *order) {
  if (orders < 1 || orders > MOST_ORDERS || capacity < 1 || capacity > 1 << 24 || vocab < 1) return NULL;
  rl_memory *m = calloc(1, sizeof *m);
  if (m == NULL) return NULL;
  m->capacity = capacity, m->vocab = vocab, m->orders = orders;
  memcpy(m->order, order, orders * sizeof *order);
  m->longest = order[orders - 1];
  for (m->buckets = 64; m->buckets < capacity;) m->buckets *= 2;
  m->room = 2 * (capacity + m->longest);
  const int64_t nodes = ((int64_t)capacity + 1) * orders, padded = ((int64_t)vocab + RL_LANES - 1) / RL_LANES * RL_LANES;
  m->token = malloc(m->room * sizeof *m->token);
  m->counted = malloc(m->room);
  m->contexts = malloc(nodes * sizeof *m->contexts);
  m->followers = malloc(nodes * sizeof *m->followers);
  m->slot = malloc(vocab * sizeof *m->slot);
  m->found = malloc(vocab * sizeof *m->found);
  m->probability = malloc(vocab * sizeof *m->probability);
  int ok = m->token && m->counted && m->contexts && m->followers && m->slot && m->found && m->probability;
  for (int i = 0; i < SETS + 2; i++) ok = (m->row[i] = calloc(padded, sizeof(float))) && ok;
  for (int o = 0; o < orders; o++) {
    m->head[o] = malloc(m->buckets * sizeof *m->head[o]);
    ok = ok && m->head[o];
    for (int32_t i = 0; m->head[o] && i < m->buckets; i++) m->head[o][i] = NONE;
  }
  if (!ok) return rl_memory_free(m), NULL;
  for (int64_t i = 0; i < nodes; i++) m->contexts[i].next = m->followers[i].next = (int32_t)i + 1;
  for (int32_t v = 0; v < vocab; v++) m->slot[v] = NONE;
  return m;
}

void rl_memory_free(rl_memory *m) {
  if (m == NULL) return;
  for (int o = 0; o < m->orders; o++) free(m->head[o]);
  for (int i = 0; i < SETS + 2; i++) free(m->row[i]);
  free(m->token), free(m->counted), free(m->contexts), free(m->followers), free(m->slot), free(m->found);
  free(m->probability), free(m);
}
