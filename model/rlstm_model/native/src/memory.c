/* A memory of the newest tokens: exact n-gram counts, interpolated into a given distribution.
 *
 * For each order n, ascending, whose context has been seen, with c(x) the times that x followed it, N their sum,
 * and N_1, N_2, N_3 how many tokens followed it once, twice, more often:
 *
 *     p_n(x) = (max(c(x) - d_c(x), 0) + (theta + d_1 N_1 + d_2 N_2 + d_3 N_3) p_{n-1}(x)) / (N + theta)
 *
 * (modified Kneser-Ney discounts: Chen & Goodman 1998, §3; theta: Pitman & Yor 1997). p_0 is what is given. Tokens
 * that no context has seen keep their proportions, so a distribution costs one addition a token of the vocabulary and
 * a few logarithms. What is found is compared with the tokens themselves: no hash stands for a context. */
#include "rlstm.h"

#include <stdlib.h>

#include "lanes.h"

#define MOST_ORDERS 8
#define MOST_TOKENS (1 << 24)
#define NONE (-1)

/* What followed one context. `place`: of the newest token that did. */
typedef struct {
  int64_t place;
  int32_t total, distinct[3], first, next;
} context;

typedef struct {
  int32_t token, count, next;
} follower;

struct rl_memory {
  int32_t capacity, orders, order[MOST_ORDERS], vocab, longest;
  float discount[MOST_ORDERS][4]; /* d_1, d_2, d_3, theta */
  int64_t read;                   /* tokens so far */
  int32_t *token, mask;           /* the newest, by place */
  int32_t *head[MOST_ORDERS], buckets;
  context *contexts;
  follower *followers;
  int32_t free_context, free_follower;
  int32_t *slot; /* [vocab] where a follower stands among the found ones, NONE outside of a call */
  int32_t *found;
  double *probability;
};

static int32_t at(const rl_memory *m, int64_t place) { return m->token[place & m->mask]; }

static uint64_t scramble(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 29, x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 32;
}

/* The bucket of the context of `length` tokens before `place`. */
static int32_t *bucket(rl_memory *m, int o, int64_t place) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (int32_t j = 1; j <= m->order[o]; j++) hash = scramble(hash + (uint64_t)at(m, place - j) + 1);
  return &m->head[o][hash & (uint64_t)(m->buckets - 1)];
}

static int same(const rl_memory *m, int o, int64_t a, int64_t b) {
  for (int32_t j = 1; j <= m->order[o]; j++)
    if (at(m, a - j) != at(m, b - j)) return 0;
  return 1;
}

/* Where the number of the context before `place` stands: in its bucket, or in the one before it there. */
static int32_t *find(rl_memory *m, int o, int64_t place) {
  int32_t *link = bucket(m, o, place);
  while (*link != NONE && !same(m, o, m->contexts[*link].place, place)) link = &m->contexts[*link].next;
  return link;
}

static int32_t *find_follower(rl_memory *m, context *c, int32_t token) {
  int32_t *link = &c->first;
  while (*link != NONE && m->followers[*link].token != token) link = &m->followers[*link].next;
  return link;
}

INLINE int kind(int32_t count) { return count > 3 ? 2 : count - 1; }

static void count(rl_memory *m, int64_t place) {
  for (int o = 0; o < m->orders && place >= m->order[o]; o++) {
    int32_t *link = find(m, o, place);
    if (*link == NONE) {
      const int32_t fresh = m->free_context;
      m->free_context = m->contexts[fresh].next;
      m->contexts[fresh] = (context){.first = NONE, .next = NONE};
      *link = fresh;
    }
    context *c = &m->contexts[*link];
    int32_t *own = find_follower(m, c, at(m, place));
    if (*own == NONE) {
      const int32_t fresh = m->free_follower;
      m->free_follower = m->followers[fresh].next;
      m->followers[fresh] = (follower){at(m, place), 0, c->first};
      c->first = fresh;
      own = &c->first;
    } else {
      c->distinct[kind(m->followers[*own].count)]--;
    }
    c->distinct[kind(++m->followers[*own].count)]++;
    c->total++;
    c->place = place;
  }
}

static void forget(rl_memory *m, int64_t place) {
  for (int o = 0; o < m->orders && place >= m->order[o]; o++) {
    int32_t *link = find(m, o, place);
    const int32_t number = *link;
    context *c = &m->contexts[number];
    int32_t *own = find_follower(m, c, at(m, place));
    follower *f = &m->followers[*own];
    c->total--;
    c->distinct[kind(f->count)]--;
    if (--f->count > 0) {
      c->distinct[kind(f->count)]++;
    } else {
      const int32_t gone = *own;
      *own = f->next;
      f->next = m->free_follower;
      m->free_follower = gone;
    }
    if (c->total == 0) {
      *link = c->next;
      c->next = m->free_context;
      m->free_context = number;
    }
  }
}

void rl_memory_add(rl_memory *m, const int32_t *tokens, int64_t length) {
  for (int64_t i = 0; i < length; i++) {
    if (m->read >= m->capacity) forget(m, m->read - m->capacity);
    m->token[m->read & m->mask] = tokens[i];
    count(m, m->read++);
  }
}

/* The contexts before the next token, ascending; how many there are. */
static int matched(rl_memory *m, const context **seen) {
  int count_ = 0;
  for (int o = 0; o < m->orders && m->read >= m->order[o]; o++) {
    const int32_t number = *find(m, o, m->read);
    if (number == NONE) break;
    seen[count_++] = &m->contexts[number];
  }
  return count_;
}

typedef struct {
  double kept, scale; /* what is left for the order below, over all; 1 / (N + theta) */
} share_;

static share_ share_of(const rl_memory *m, int o, const context *c) {
  const float *d = m->discount[o];
  const double lost = (double)d[0] * c->distinct[0] + (double)d[1] * c->distinct[1] + (double)d[2] * c->distinct[2];
  const double scale = 1.0 / (c->total + (double)d[3]);
  return (share_){(lost + d[3]) * scale, scale};
}

static double gain(const rl_memory *m, int o, int32_t times, double scale) {
  const double left = times - (double)m->discount[o][kind(times)];
  return left > 0.0 ? left * scale : 0.0;
}

/* One distribution: `out` becomes the log-probabilities of `log_probs` with the memory. */
static void interpolate(rl_memory *m, const context *const *seen, int orders, const float *log_probs, float *out) {
  double outside = 1.0;
  share_ shares[MOST_ORDERS];
  int32_t found = 0;
  for (int o = 0; o < orders; o++) shares[o] = share_of(m, o, seen[o]), outside *= shares[o].kept;
  const float shift = (float)log_d(outside);
  for (int32_t v = 0; v < m->vocab; v++) out[v] = log_probs[v] + shift;
  /* All that followed a longer context followed the shortest. */
  for (int32_t i = seen[0]->first; i != NONE; i = m->followers[i].next) {
    const int32_t v = m->followers[i].token;
    m->slot[v] = found, m->found[found] = v;
    m->probability[found++] = exp_d(log_probs[v]);
  }
  for (int o = 0; o < orders; o++) {
    for (int32_t k = 0; k < found; k++) m->probability[k] *= shares[o].kept;
    for (int32_t i = seen[o]->first; i != NONE; i = m->followers[i].next)
      m->probability[m->slot[m->followers[i].token]] += gain(m, o, m->followers[i].count, shares[o].scale);
  }
  for (int32_t k = 0; k < found; k++) {
    out[m->found[k]] = (float)log_d(m->probability[k]);
    m->slot[m->found[k]] = NONE;
  }
}

int32_t rl_memory_read(rl_memory *m, int32_t experts, int64_t stride, const float *const *log_probs, int32_t length,
                       const int32_t *tokens, float *const *out, int32_t *matches, int32_t counts) {
  for (int32_t t = 0; t < length; t++)
    if (tokens[t] < 0 || tokens[t] >= m->vocab) return -1;
  for (int32_t t = 0; t < length; t++) {
    const context *seen[MOST_ORDERS];
    matches[t] = matched(m, seen);
    for (int32_t k = 0; k < experts; k++) {
      const float *row = log_probs[k] + t * stride;
      if (matches[t] == 0)
        memcpy(out[k] + t * stride, row, stride * sizeof(float));
      else {
        for (int64_t v = m->vocab; v < stride; v++) out[k][t * stride + v] = row[v];
        interpolate(m, seen, matches[t], row, out[k] + t * stride);
      }
    }
    if (counts) rl_memory_add(m, &tokens[t], 1);
  }
  return 0;
}

rl_memory *rl_memory_new(int32_t capacity, int32_t vocab, int32_t orders, const int32_t *order,
                         const float *discounts) {
  rl_memory *m = calloc(1, sizeof *m);
  if (m == NULL || orders < 1 || orders > MOST_ORDERS || capacity < 1 || capacity > MOST_TOKENS || vocab < 1)
    return free(m), NULL;
  for (int o = 0; o < orders; o++)
    if (order[o] < 1 || order[o] > MOST_TOKENS || (o > 0 && order[o] <= order[o - 1])) return free(m), NULL;
  m->capacity = capacity, m->vocab = vocab, m->orders = orders;
  memcpy(m->order, order, orders * sizeof *order);
  memcpy(m->discount, discounts, orders * sizeof *m->discount);
  m->longest = order[orders - 1];
  for (m->buckets = 64; m->buckets < capacity;) m->buckets *= 2;
  int32_t size = 64;
  while (size < capacity + m->longest + 1) size *= 2;
  m->mask = size - 1;
  const int32_t nodes = capacity * orders + orders;
  m->token = calloc(size, sizeof *m->token);
  m->contexts = malloc(nodes * sizeof *m->contexts);
  m->followers = malloc(nodes * sizeof *m->followers);
  m->slot = malloc(vocab * sizeof *m->slot);
  m->found = malloc(vocab * sizeof *m->found);
  m->probability = malloc(vocab * sizeof *m->probability);
  int ok = m->token && m->contexts && m->followers && m->slot && m->found && m->probability;
  for (int o = 0; o < orders; o++) {
    m->head[o] = malloc(m->buckets * sizeof *m->head[o]);
    ok = ok && m->head[o];
    for (int32_t i = 0; m->head[o] && i < m->buckets; i++) m->head[o][i] = NONE;
  }
  if (!ok) return rl_memory_free(m), NULL;
  for (int32_t i = 0; i < nodes; i++) m->contexts[i].next = m->followers[i].next = i + 1;
  for (int32_t v = 0; v < vocab; v++) m->slot[v] = NONE;
  return m;
}

void rl_memory_free(rl_memory *m) {
  if (m == NULL) return;
  for (int o = 0; o < m->orders; o++) free(m->head[o]);
  free(m->token), free(m->contexts), free(m->followers), free(m->slot), free(m->found), free(m->probability), free(m);
}
