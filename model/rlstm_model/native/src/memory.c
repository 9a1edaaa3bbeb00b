/* A memory of the newest tokens: exact n-gram counts, interpolated into what the experts say, and mixed with them.
 *
 * The chain. p_0 is the Bayes mixture of the experts. For each order n, ascending, whose context has been seen, with
 * c(x) the times that x followed its newest occurrences, N their sum and D how many tokens did:
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
#define NOWHERE 0xffff
#define OCCURRENCES 255 /* of a context, the newest, are counted */
#define VISITED 1023    /* places of a bucket that are looked at for them */
#define TOTALS 8
#define DISTINCTS 4
#define PREVIOUS 256
#define SETS 3

struct rl_memory {
  int32_t capacity, orders, order[MOST_ORDERS], vocab, longest, mask;
  int64_t read;     /* tokens so far */
  int32_t *token;   /* [mask + 1], by place */
  uint8_t *counted; /* likewise */
  uint16_t *newest[MOST_ORDERS], *older[MOST_ORDERS]; /* [mask + 1] by bucket, and by place: the chain of a bucket */
  int32_t *slot, *place; /* [vocab] where a token stands in `found` and in `chain`; NONE outside of a call */
  int32_t *found, *count, *chain;
  double *probability; /* of `chain` */
  float *row[SETS + 2]; /* [padded vocab]: the mixture of the experts, the chain, and blends */
};

static uint64_t scramble(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 29, x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 32;
}

/* The bucket of each order's context, which ends before `end`; how many orders have one, of `known` tokens. */
static int buckets_before(const rl_memory *m, const int32_t *end, int64_t known, int32_t bucket[MOST_ORDERS]) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  int o = 0;
  for (int32_t j = 1; o < m->orders && j <= known; j++) {
    hash = scramble(hash + (uint64_t)end[-j] + 1);
    if (j == m->order[o]) bucket[o++] = (int32_t)(hash & (uint64_t)m->mask);
  }
  return o;
}

/* Read on: the token becomes the newest of its contexts' buckets, where it `counts`. */
static void add(rl_memory *m, int32_t token, int counts, const int32_t bucket[MOST_ORDERS], int known) {
  const int32_t here = (int32_t)(m->read & m->mask);
  m->token[here] = token;
  m->counted[here] = counts != 0;
  for (int o = 0; counts && o < known; o++) {
    m->older[o][here] = m->newest[o][bucket[o]];
    m->newest[o][bucket[o]] = (uint16_t)here;
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
    int32_t bucket[MOST_ORDERS];
    const int orders = buckets_before(m, line + known + i, known + i, bucket);
    add(m, line[known + i], counted[i], bucket, orders);
  }
  return 0;
}

/* What followed the newest occurrences of a context. */
typedef struct {
  int32_t total, distinct, first; /* [first, first + distinct) of `found` and `count` */
} followers;

/* Whether the context before a place, given by its slot, is the one that ends before `end`. */
static int same(const rl_memory *m, int32_t slot, const int32_t *end, int32_t length) {
  for (int32_t j = 1; j <= length; j++)
    if (m->token[(slot - j) & m->mask] != end[-j]) return 0;
  return 1;
}

/* Chains go from newer to older places: one that does not has come to a place that was written over. */
static followers followed(rl_memory *m, int o, int32_t bucket, const int32_t *end) {
  followers f = {0, 0, 0};
  int64_t age = 0;
  uint16_t place = m->newest[o][bucket];
  for (int visited = 0; place != NOWHERE && visited < VISITED && f.total < OCCURRENCES; visited++) {
    const int64_t next_age = (m->read - place) & m->mask;
    if (next_age <= age || next_age > m->capacity || next_age > m->read) break;
    age = next_age;
    if (m->counted[place] && same(m, place, end, m->order[o])) {
      const int32_t token = m->token[place];
      if (m->slot[token] == NONE) m->slot[token] = f.distinct, m->found[f.distinct] = token, m->count[f.distinct++] = 0;
      m->count[m->slot[token]]++;
      f.total++;
    }
    place = m->older[o][place];
  }
  for (int32_t i = 0; i < f.distinct; i++) m->slot[m->found[i]] = NONE;
  return f;
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

static bucket *bucket_of(const learned *l, int o, const followers *f) {
  static const int32_t totals[TOTALS - 1] = {1, 2, 3, 5, 9, 19, 49}, distincts[DISTINCTS - 1] = {1, 2, 5};
  int total = 0, distinct = 0;
  while (total < TOTALS - 1 && f->total > totals[total]) total++;
  while (distinct < DISTINCTS - 1 && f->distinct > distincts[distinct]) distinct++;
  return &l->bucket[(o * TOTALS + total) * DISTINCTS + distinct];
}

/* ---- reading --------------------------------------------------------------------------------------------- */

#define DISCOUNT 0.3
#define MOST_SEEN 500.0f
#define GREATEST 4.0f

/* The chain over `base`, into `out`, both log-probabilities; with `learns` the shares follow the target. How many
 * orders have seen the context, and whether the longest of these had one successor. */
static int interpolate(rl_memory *m, const learned *l, const int32_t *end, const int32_t bucket_[MOST_ORDERS],
                       int known, const float *base, float *out, int learns, int *single) {
  double outside_ = 1.0, own = exp_d(base[*end]);
  int32_t chained = 0; /* tokens that followed: their numbers stand in `chain`, their places there in `slot` */
  int depth = 0;
  *single = 0;
  for (int o = 0; o < known; o++) {
    const followers f = followed(m, o, bucket_[o], end);
    if (f.total == 0) break;
    depth++;
    *single = f.distinct == 1;
    bucket *b = bucket_of(l, o, &f);
    const double share = (double)b->answered / b->seen, scale = share / (f.total - DISCOUNT * f.distinct);
    for (int32_t k = 0; k < chained; k++) m->probability[k] *= 1.0 - share;
    double answer = 0.0;
    for (int32_t i = 0; i < f.distinct; i++) {
      const int32_t token = m->found[i];
      const double more = (m->count[i] - DISCOUNT) * scale;
      if (m->place[token] == NONE) {
        m->place[token] = chained, m->chain[chained] = token;
        m->probability[chained++] = exp_d(base[token]) * outside_ * (1.0 - share);
      }
      m->probability[m->place[token]] += more;
      if (token == *end) answer = more;
    }
    outside_ *= 1.0 - share;
    own = own * (1.0 - share) + answer;
    if (!learns) continue;
    b->answered += own > 0.0 ? (float)(answer / own) : 0.0f;
    b->seen += 1.0f;
    if (b->seen > MOST_SEEN) b->answered *= MOST_SEEN / b->seen, b->seen = MOST_SEEN;
  }
  const float shift = depth > 0 ? (float)log_d(outside_) : 0.0f;
  for (int32_t v = 0; v < m->vocab; v++) out[v] = base[v] + shift;
  for (int32_t k = 0; k < chained; k++) {
    out[m->chain[k]] = (float)log_d(m->probability[k]);
    m->place[m->chain[k]] = NONE;
  }
  return depth;
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
                       int64_t known, float *out, float *weights_only, int mode) {
  const rl_kernels *kernels = rl_chosen_kernels();
  const int32_t target = *end;
  const int learns = mode == RL_LEARN;
  float *mixed = m->row[0], *chain = m->row[1], *blend[SETS];
  const rl_token token = {experts, m->vocab, target, given, l->bayes};
  int32_t rank, bucket_[MOST_ORDERS];
  float entropy;
  int single;
  const int orders = buckets_before(m, end, known, bucket_);
  kernels->distribution(&token, &rank, &entropy, mixed);
  *weights_only = mixed[target];
  const int depth = interpolate(m, l, end, bucket_, orders, mixed, chain, learns, &single);
  const float *row[MOST_INPUTS];
  for (int k = 0; k < experts; k++) row[k] = given[k];
  row[experts] = chain;
  const int first = 2 * (m->orders + 1);
  const int chosen[SETS] = {2 * depth + single, first + (known > 0 ? end[-1] % PREVIOUS : 0), first + PREVIOUS};
  for (int s = 0; s < SETS; s++) {
    float *weights = l->set + (int64_t)chosen[s] * (l->inputs + 1), expected[MOST_INPUTS];
    blend[s] = m->row[2 + s];
    kernels->blend(l->inputs, m->vocab, row, weights, blend[s], expected);
    if (learns) follow(weights, l->inputs, row, expected, target);
  }
  static const float third[SETS] = {1.0f / SETS, 1.0f / SETS, 1.0f / SETS};
  kernels->blend(SETS, m->vocab, (const float *const *)blend, third, out, NULL);
  if (mode != RL_LOOK) add(m, target, learns, bucket_, orders);
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
                       const int32_t *line, int32_t known, float *values, float *out, float *weights_only,
                       int32_t mode) {
  if (experts < 1 || experts >= MOST_INPUTS || outside(m, line, (int64_t)known + length)) return -1;
  const learned l = parts_of(m->orders, experts, values);
  for (int32_t t = 0; t < length; t++) {
    const float *given[MOST_INPUTS];
    for (int k = 0; k < experts; k++) given[k] = log_probs[k] + t * stride;
    read_token(m, &l, experts, given, line + known + t, (int64_t)known + t, out + t * stride, weights_only + t,
               mode);
  }
  return 0;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

rl_memory *rl_memory_new(int32_t capacity, int32_t vocab, int32_t orders, const int32_t *order) {
  if (orders < 1 || orders > MOST_ORDERS || capacity < 1 || vocab < 1) return NULL;
  const int32_t longest = order[orders - 1];
  if (longest < 1 || longest >= 1 << 15 || capacity > (1 << 15) - 1 - longest) return NULL;
  for (int o = 0; o < orders; o++)
    if (order[o] < 1 || (o > 0 && order[o] <= order[o - 1])) return NULL;
  rl_memory *m = calloc(1, sizeof *m);
  if (m == NULL) return NULL;
  m->capacity = capacity, m->vocab = vocab, m->orders = orders, m->longest = longest;
  memcpy(m->order, order, orders * sizeof *order);
  int32_t size = 64;
  while (size < capacity + longest + 1) size *= 2;
  m->mask = size - 1;
  const int64_t padded = ((int64_t)vocab + RL_LANES - 1) / RL_LANES * RL_LANES;
  m->token = malloc(size * sizeof *m->token), m->counted = calloc(size, 1);
  m->slot = malloc(vocab * sizeof *m->slot), m->place = malloc(vocab * sizeof *m->place);
  m->found = malloc(OCCURRENCES * sizeof *m->found), m->count = malloc(OCCURRENCES * sizeof *m->count);
  m->chain = malloc(MOST_ORDERS * OCCURRENCES * sizeof *m->chain);
  m->probability = malloc(MOST_ORDERS * OCCURRENCES * sizeof *m->probability);
  int ok = m->token && m->counted && m->slot && m->place && m->found && m->count && m->chain && m->probability;
  for (int i = 0; i < SETS + 2; i++) ok = (m->row[i] = calloc(padded, sizeof(float))) && ok;
  for (int o = 0; o < orders; o++) {
    m->newest[o] = malloc(size * sizeof *m->newest[o]), m->older[o] = malloc(size * sizeof *m->older[o]);
    ok = ok && m->newest[o] && m->older[o];
    if (m->newest[o]) memset(m->newest[o], 0xff, size * sizeof *m->newest[o]);
    if (m->older[o]) memset(m->older[o], 0xff, size * sizeof *m->older[o]);
  }
  if (!ok) return rl_memory_free(m), NULL;
  for (int32_t v = 0; v < vocab; v++) m->slot[v] = m->place[v] = NONE;
  return m;
}

void rl_memory_free(rl_memory *m) {
  if (m == NULL) return;
  for (int o = 0; o < m->orders; o++) free(m->newest[o]), free(m->older[o]);
  for (int i = 0; i < SETS + 2; i++) free(m->row[i]);
  free(m->token), free(m->counted), free(m->slot), free(m->place), free(m->found), free(m->count);
  free(m->chain), free(m->probability), free(m);
}
