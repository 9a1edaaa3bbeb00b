/* Products, cells and their gradients, compiled once for each instruction set.
 *
 * Threads of a team own columns of what is computed: panels of LANES, the same in every step. A barrier stands
 * wherever one thread reads what another has written.
 */
#include "lanes.h"
#include "rlstm.h"
#include "team.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define FOR_SET(name) JOIN(name, RL_SET)

/* ---- products ------------------------------------------------------------------------------------------- */

/* Terms of a sum that are added before the sum is put down: as many as leave panels in a core's cache. */
#define DEPTH 512

/* Rows and panels of a tile: as many sums as there are registers for. Where rows are cut into blocks, which differ
 * by one at most, all of them have the same number of panels. */
#if WIDTH == 16
#define MOST_ROWS 12
#define WIDEST 8
static const int panels_of[MOST_ROWS + 1] = {0, 8, 8, 8, 4, 4, 2, 2, 2, 2, 2, 2, 2};
#else
#define MOST_ROWS 6
#define WIDEST 4
#if WIDTH == 8
static const int panels_of[MOST_ROWS + 1] = {0, 4, 3, 2, 1, 1, 1};
#else
static const int panels_of[MOST_ROWS + 1] = {0, 4, 2, 2, 1, 1, 1};
#endif
#endif

typedef struct {
  const float *x; /* rows, `ldx` apart */
  int64_t ldx;
  const void *w; /* panels of `depth` times LANES values, `panel` values apart */
  int64_t panel;
  int32_t depth;
  float *y; /* rows, `ldy` apart: added to, unless `fresh` */
  int64_t ldy;
  int32_t fresh;
} rl_tile;

INLINE void tile(const int rows, const int panels, const int half, const rl_tile *t) {
  vec sum[MOST_ROWS * WIDEST * PARTS];
#pragma GCC unroll 32
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 32
    for (int p = 0; p < panels * PARTS; p++)
      sum[r * panels * PARTS + p] = t->fresh ? (vec){0} : load(t->y + r * t->ldy + p * WIDTH);
  const float *x = t->x;
  const float *w = t->w;
  const uint16_t *h = t->w;
  for (int k = 0; k < t->depth; k++) {
    vec factor[WIDEST * PARTS];
#pragma GCC unroll 32
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 32
      for (int q = 0; q < PARTS; q++)
        factor[p * PARTS + q] = half ? load_half(h + p * t->panel + k * LANES + q * WIDTH)
                                     : load(w + p * t->panel + k * LANES + q * WIDTH);
/* The panels that come next are on their way while these are multiplied. */
#pragma GCC unroll 32
    for (int p = 0; p < panels && rows >= 6; p++)
      __builtin_prefetch((const char *)t->w + ((p + panels) * t->panel + k * LANES) * (half ? 2 : 4));
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++) {
      vec value = all(x[r * t->ldx + k]);
#pragma GCC unroll 32
      for (int p = 0; p < panels * PARTS; p++)
        sum[r * panels * PARTS + p] = fma_(value, factor[p], sum[r * panels * PARTS + p]);
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 32
    for (int p = 0; p < panels * PARTS; p++) store(t->y + r * t->ldy + p * WIDTH, sum[r * panels * PARTS + p]);
}

typedef void (*tile_function)(const rl_tile *);

#define TILE(rows, panels, half) \
  static void tile_##rows##_##panels##_##half(const rl_tile *t) { tile(rows, panels, half, t); }
#define TILES(rows, panels) TILE(rows, panels, 0) TILE(rows, panels, 1)
#define NARROW(rows) {tile_##rows##_1_0, tile_##rows##_1_1}
#define WIDE(rows, panels) {tile_##rows##_##panels##_0, tile_##rows##_##panels##_1}

TILES(1, 1) TILES(2, 1) TILES(3, 1) TILES(4, 1) TILES(5, 1) TILES(6, 1)
#if WIDTH == 16
TILES(7, 1) TILES(8, 1) TILES(9, 1) TILES(10, 1) TILES(11, 1) TILES(12, 1)
TILES(1, 8) TILES(2, 8) TILES(3, 8) TILES(4, 4) TILES(5, 4) TILES(6, 2)
TILES(7, 2) TILES(8, 2) TILES(9, 2) TILES(10, 2) TILES(11, 2) TILES(12, 2)
static const tile_function narrow[MOST_ROWS][2] = {NARROW(1), NARROW(2), NARROW(3),  NARROW(4),  NARROW(5),  NARROW(6),
                                                   NARROW(7), NARROW(8), NARROW(9), NARROW(10), NARROW(11), NARROW(12)};
static const tile_function wide[MOST_ROWS][2] = {
    WIDE(1, 8), WIDE(2, 8), WIDE(3, 8), WIDE(4, 4),  WIDE(5, 4),  WIDE(6, 2),
    WIDE(7, 2), WIDE(8, 2), WIDE(9, 2), WIDE(10, 2), WIDE(11, 2), WIDE(12, 2)};
#else
#if WIDTH == 8
TILES(1, 4) TILES(2, 3) TILES(3, 2)
static const tile_function wide[MOST_ROWS][2] = {WIDE(1, 4), WIDE(2, 3), WIDE(3, 2), NARROW(4), NARROW(5), NARROW(6)};
#else
TILES(1, 4) TILES(2, 2) TILES(3, 2)
static const tile_function wide[MOST_ROWS][2] = {WIDE(1, 4), WIDE(2, 2), WIDE(3, 2), NARROW(4), NARROW(5), NARROW(6)};
#endif
static const tile_function narrow[MOST_ROWS][2] = {NARROW(1), NARROW(2), NARROW(3), NARROW(4), NARROW(5), NARROW(6)};
#endif

/* Columns first .. last (panels) of y = W x, or of y = W' x, for `rows` rows. Padding is not added up. */
static void product(const rl_matrix *w, int transposed, const float *x, int64_t ldx, int rows, float *y, int64_t ldy,
                    int fresh, int first, int last) {
  if (rows == 0 || first >= last) return;
  const int depth = transposed ? w->n : w->m, parts = transposed ? w->blocks : 1;
  const int part = depth / parts, real = transposed ? w->rows : w->columns;
  const char *packed = transposed ? w->backward : w->forward;
  const int blocks = (rows + MOST_ROWS - 1) / MOST_ROWS, most = (rows + blocks - 1) / blocks;
  const int at_once = panels_of[most];
  for (int panel = first; panel < last;) {
    const int panels = last - panel >= at_once ? at_once : 1;
    rl_tile t = {.panel = (int64_t)depth * LANES, .ldx = ldx, .ldy = ldy, .fresh = fresh};
    for (int begin = 0; begin < depth; begin += part)
      for (int k = begin; k < begin + real; k += DEPTH) {
        t.depth = begin + real - k < DEPTH ? begin + real - k : DEPTH;
        t.w = packed + (panel * t.panel + (int64_t)k * LANES) * (w->half ? 2 : 4);
        for (int block = 0, row = 0; block < blocks; block++) {
          const int own = (rows - row + blocks - block - 1) / (blocks - block);
          t.x = x + row * ldx + k;
          t.y = y + row * ldy + panel * LANES;
          const tile_function multiply = panels > 1 ? wide[own - 1][w->half] : narrow[own - 1][w->half];
          multiply(&t);
          row += own;
        }
        t.fresh = 0;
      }
    panel += panels;
  }
}

/* ---- threads' shares ------------------------------------------------------------------------------------ */

typedef struct {
  int first, last;
} range;

#define EACH(i, columns) for (int64_t i = (columns).first * LANES; i < (columns).last * LANES; i += WIDTH)

INLINE range share(int64_t count, int thread, int threads) {
  return (range){(int)(count * thread / threads), (int)(count * (thread + 1) / threads)};
}

/* ---- matrices with what rows add ------------------------------------------------------------------------ */

/* A batch at work. Activations of a row's token t stand in place `offset[t] + row`; where only learning looks back on
 * them in `t learners + row`, so that what rows that do not learn left there is overwritten in the next step. */
typedef struct {
  rl_batch *batch;
  const rl_model *model;
  int thread, threads;
  int rows, learners, steps;
  int64_t tokens, learned; /* of all rows, of those that learn */
  int32_t *active;         /* [steps] rows that read a token */
  int32_t *adding;         /* [steps] rows up to the last one that has fast weights */
  int64_t *offset;         /* [steps + 1] */
  int64_t kept;            /* tokens of the arrays that only learning looks back on */
  const float **own;       /* [rows] */
  int64_t width, widest;   /* units of all layers together; the widest vector */
  float *low, *middle;     /* between the factors of what rows add */
  float *gradient;         /* [learners, own_size] */
} work;

INLINE void wait_(work *w) {
  if (w->threads > 1) rl_barrier(w->batch->team);
}

/* The sum of a b, LANES partial sums and a tree. */
static float dot(const float *a, const float *b, int n) {
  vec sum[PARTS];
  float lane[LANES];
  for (int p = 0; p < PARTS; p++) sum[p] = (vec){0};
  for (int i = 0; i < n; i += LANES)
    for (int p = 0; p < PARTS; p++)
      sum[p] = fma_(load(a + i + p * WIDTH), load(b + i + p * WIDTH), sum[p]);
  for (int p = 0; p < PARTS; p++) store(lane + p * WIDTH, sum[p]);
  return tree(lane);
}

/* What rows add to a product: y grows by left core right x, or, going back, by right' core' left' x.
 * `own` are the rows' fast weights; y's columns are panels of the thread. */
static void add_own(work *w, const rl_weight *weight, int back, const float *x, int64_t ldx, int rows,
                    const float *const *own, float *y, int64_t ldy, int blocks, int width, range columns) {
  const rl_matrix *in = back ? &weight->left : &weight->right, *out = back ? &weight->right : &weight->left;
  const int lows = back ? weight->r : weight->q, middles = back ? weight->q : weight->r;
  range mine = share(lows / LANES, w->thread, w->threads);
  product(in, back, x, ldx, rows, w->low, lows, 1, mine.first, mine.last);
  wait_(w);
  mine = share(middles / LANES, w->thread, w->threads);
  for (int row = 0; row < rows; row++) {
    float *middle = w->middle + (int64_t)row * middles;
    const float *low = w->low + (int64_t)row * lows;
    const float *core = own[row] == NULL ? NULL : own[row] + weight->own;
    if (core == NULL) {
      EACH(i, mine) store(middle + i, (vec){0});
    } else if (!back) {
      for (int64_t r = mine.first * LANES; r < mine.last * LANES; r++) middle[r] = dot(core + r * lows, low, lows);
    } else {
      EACH(i, mine) {
        vec sum = {0};
        for (int64_t r = 0; r < lows; r++) sum = fma_(all(low[r]), load(core + r * middles + i), sum);
        store(middle + i, sum);
      }
    }
  }
  wait_(w);
  for (int block = 0; block < blocks; block++)
    product(out, back, w->middle, middles, rows, y, ldy, 0, block * width + columns.first,
            block * width + columns.last);
}

/* y = W x, or y + W x unless `fresh`, for the thread's columns of each of `blocks` blocks of `width` panels. */
static void apply(work *w, const rl_weight *weight, const float *x, int64_t ldx, int rows, int adding,
                  const float *const *own, float *y, int64_t ldy, int fresh, int blocks, int width, range columns) {
  for (int block = 0; block < blocks; block++)
    product(&weight->shared, 0, x, ldx, rows, y, ldy, fresh, block * width + columns.first,
            block * width + columns.last);
  if (weight->own >= 0 && weight->r > 0 && adding > 0)
    add_own(w, weight, 0, x, ldx, adding, own, y, ldy, blocks, width, columns);
}

/* The same with the transposed matrix, for rows that learn. */
static void apply_back(work *w, const rl_weight *weight, const float *x, int64_t ldx, int rows,
                       const float *const *own, float *y, int64_t ldy, int fresh, range columns) {
  product(&weight->shared, 1, x, ldx, rows, y, ldy, fresh, columns.first, columns.last);
  if (weight->own >= 0 && weight->r > 0)
    add_own(w, weight, 1, x, ldx, rows, own, y, ldy, 1, 0, columns);
}

/* Rows of a bias, what each adds included: the thread's columns of each block. */
static void fill_bias(const rl_bias *bias, int rows, const float *const *own, float *y, int64_t ldy, int blocks,
                      int width, range columns) {
  const int64_t length = (columns.last - columns.first) * LANES;
  for (int row = 0; row < rows; row++)
    for (int block = 0; block < blocks; block++) {
      const int64_t at = (block * width + columns.first) * LANES;
      float *out = y + row * ldy + at;
      if (!bias->present) {
        memset(out, 0, length * sizeof(float));
        continue;
      }
      memcpy(out, bias->shared + at, length * sizeof(float));
      if (bias->own >= 0 && own[row] != NULL)
        for (int64_t i = 0; i < length; i += WIDTH) store(out + i, load(out + i) + load(own[row] + bias->own + at + i));
    }
}

/* Rows of a core's gradient that are summed at once. */
#define OUTER_ROWS 8

/* `rows` rows of a core's gradient: each element is the sum over the steps of d_i x_j. */
INLINE void outer_rows(const int rows, float *gradient, int64_t m, const float *d, int64_t ldd, const float *x,
                       int64_t ldx, int steps) {
  for (int64_t j = 0; j < m; j += WIDTH) {
    vec sum[OUTER_ROWS];
    for (int i = 0; i < rows; i++) sum[i] = load(gradient + i * m + j);
    for (int t = 0; t < steps; t++) {
      const vec value = load(x + t * ldx + j);
      for (int i = 0; i < rows; i++) sum[i] = fma_(all(d[t * ldd + i]), value, sum[i]);
    }
    for (int i = 0; i < rows; i++) store(gradient + i * m + j, sum[i]);
  }
}

/* The gradient of each row's core [n, m] at `own`, the thread's rows: d is [learned, n], x [learned, m]. */
static void outer_sums(work *w, int64_t own, const float *d, int64_t ldd, int64_t n, const float *x, int64_t ldx,
                       int64_t m) {
  const range mine = share(n, w->thread, w->threads);
  const int learners = w->learners, steps = (int)(w->learned / learners);
  for (int row = 0; row < learners; row++) {
    float *gradient = w->gradient + row * w->model->own_size + own;
    const float *dr = d + row * ldd, *xr = x + row * ldx;
    int64_t i = mine.first;
    for (; i + OUTER_ROWS <= mine.last; i += OUTER_ROWS)
      outer_rows(OUTER_ROWS, gradient + i * m, m, dr + i, learners * ldd, xr, learners * ldx, steps);
    for (; i < mine.last; i++) outer_rows(1, gradient + i * m, m, dr + i, learners * ldd, xr, learners * ldx, steps);
  }
}

/* The gradient at what a row adds to W, from gradients `d` at the products W x of its tokens.
 *
 * Both are [learned, ..], token after token, `learners` rows a token; `scratch` holds them between the axes. */
static void weight_gradient(work *w, const rl_weight *weight, const float *d, int64_t ldd, const float *x,
                            int64_t ldx, float *low_d, float *low_x) {
  if (weight->own < 0) return;
  int64_t n = weight->r, m = weight->q, ld_n = n, ld_m = m;
  if (n > 0) {
    range mine = share(n / LANES, w->thread, w->threads);
    product(&weight->left, 1, d, ldd, (int)w->learned, low_d, n, 1, mine.first, mine.last);
    mine = share(m / LANES, w->thread, w->threads);
    product(&weight->right, 0, x, ldx, (int)w->learned, low_x, m, 1, mine.first, mine.last);
    d = low_d, x = low_x;
    wait_(w);
  } else {
    n = weight->shared.n, m = weight->shared.m, ld_n = ldd, ld_m = ldx;
  }
  outer_sums(w, weight->own, d, ld_n, n, x, ld_m, m);
  wait_(w);
}

static void bias_gradient(work *w, const rl_bias *bias, const float *d, int64_t ldd) {
  if (!bias->present || bias->own < 0) return;
  range mine = share(bias->n / LANES, w->thread, w->threads);
  for (int row = 0; row < w->learners; row++) {
    float *gradient = w->gradient + row * w->model->own_size + bias->own;
    for (int64_t i = mine.first * LANES; i < mine.last * LANES; i += WIDTH) {
      vec sum = load(gradient + i);
      for (int64_t token = row; token < w->learned; token += w->learners) sum = sum + load(d + token * ldd + i);
      store(gradient + i, sum);
    }
  }
}

/* ---- layers --------------------------------------------------------------------------------------------- */

/* Activations of one layer over a window, [tokens, ..] each, and gradients [learned, ..] where it learns. */
typedef struct {
  float *x, *h, *c;                      /* what it reads; h; c */
  float *gates, *u, *tanh_c;             /* i j f o; i * j; tanh c: [kept, ..] */
  float *low, *gate, *gated;             /* [rounds][kept, ..] */
  float *h0, *c0;                        /* [rows, hidden] before the window */
  float *d_gates, *d_low, *d_gate, *d_x; /* gradients before the sigmoids and tanh, and at what it reads */
} trail;

INLINE int64_t round_width(const rl_layer *layer, int k) { return k % 2 == 0 ? layer->input : layer->hidden; }

/* Where round k's array of `tokens` vectors of its width begins. */
INLINE int64_t round_place(const rl_layer *layer, int k, int64_t tokens) {
  return tokens * ((k + 1) / 2 * (int64_t)layer->input + k / 2 * (int64_t)layer->hidden);
}

static void mogrify(work *w, const rl_layer *layer, const trail *a, int64_t at, int rows, int adding, const float **x,
                    const float **h) {
  const rl_model *model = w->model;
  for (int k = 0; k < model->rounds; k++) {
    const int64_t width = round_width(layer, k), from = round_width(layer, k + 1);
    const float *source = k % 2 == 0 ? *h : *x, *target = k % 2 == 0 ? *x : *h;
    float *gate = a->gate + round_place(layer, k, w->kept) + at * width;
    float *gated = a->gated + round_place(layer, k, w->kept) + at * width;
    const range columns = share(width / LANES, w->thread, w->threads);
    int64_t ld = from;
    if (layer->down != NULL) {
      float *low = a->low + (k * w->kept + at) * layer->low;
      apply(w, &layer->down[k], source, from, rows, adding, w->own, low, layer->low, 1, 1, 0,
            share(layer->low / LANES, w->thread, w->threads));
      wait_(w);
      source = low, ld = layer->low;
    }
    fill_bias(&layer->gate[k], rows, w->own, gate, width, 1, 0, columns);
    apply(w, &layer->up[k], source, ld, rows, adding, w->own, gate, width, 0, 1, 0, columns);
    for (int row = 0; row < rows; row++) EACH(i, columns) {
        const vec value = 2.0f * sigmoid_(load(gate + row * width + i));
        store(gate + row * width + i, value);
        store(gated + row * width + i, value * load(target + row * width + i));
      }
    wait_(w);
    *(k % 2 == 0 ? x : h) = gated;
  }
}

static void cell(work *w, const rl_layer *layer, const trail *a, int t, int rows, int adding, const float *x,
                 const float *h_in, const float *c_old) {
  const int rlstm = w->model->rlstm, capped = w->model->capped;
  const int64_t n = layer->hidden;
  const int width = (int)(n / LANES);
  const range columns = share(width, w->thread, w->threads);
  const int64_t at = (int64_t)t * w->learners;
  float *gates = a->gates + at * 4 * n, *u = a->u + at * n, *tanh_c = a->tanh_c + at * n;
  float *h = a->h + w->offset[t] * n, *c = a->c + w->offset[t] * n;
  fill_bias(&layer->bias, rows, w->own, gates, 4 * n, 4, width, columns);
  apply(w, &layer->h, h_in, n, rows, adding, w->own, gates, 4 * n, 0, rlstm ? 3 : 4, width, columns);
  apply(w, &layer->x, x, layer->input, rows, adding, w->own, gates, 4 * n, 0, rlstm ? 2 : 4, width, columns);
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      float *g = gates + row * 4 * n + i;
      const vec in = sigmoid_(load(g)), value = tanh_(load(g + n));
      store(g, in), store(g + n, value), store(u + row * n + i, in * value);
    }
  if (rlstm) {
    wait_(w);
    apply(w, &layer->u, u, n, rows, adding, w->own, gates + 2 * n, 4 * n, 0, 1, 0, columns);
  }
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      float *g = gates + row * 4 * n + i;
      const vec in = load(g), value = load(g + n), keep = sigmoid_(load(g + 2 * n));
      const vec written = capped ? min_(in, 1.0f - keep) : in;
      const vec now = fma_(written, value, keep * load(c_old + row * n + i));
      store(g + 2 * n, keep), store(c + row * n + i, now), store(tanh_c + row * n + i, tanh_(now));
    }
  if (rlstm) {
    wait_(w);
    apply(w, &layer->c, c, n, rows, adding, w->own, gates + 3 * n, 4 * n, 0, 1, 0, columns);
  }
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      float *g = gates + row * 4 * n + 3 * n + i;
      const vec out = sigmoid_(load(g));
      store(g, out), store(h + row * n + i, out * load(tanh_c + row * n + i));
    }
  wait_(w);
}

static void unroll(work *w, const rl_layer *layer, const trail *a) {
  const int64_t n = layer->hidden;
  for (int t = 0; t < w->steps; t++) {
    const float *x = a->x + w->offset[t] * layer->input;
    const float *h = t == 0 ? a->h0 : a->h + w->offset[t - 1] * n;
    const float *c = t == 0 ? a->c0 : a->c + w->offset[t - 1] * n;
    mogrify(w, layer, a, (int64_t)t * w->learners, w->active[t], w->adding[t], &x, &h);
    cell(w, layer, a, t, w->active[t], w->adding[t], x, h, c);
  }
}

/* One step back through the cell: from gradients at its h and c to those at what it read, in place. */
static void cell_back(work *w, const rl_layer *layer, const trail *a, int t, float *dx, float *dh, float *dc) {
  const int rlstm = w->model->rlstm, capped = w->model->capped, rows = w->learners;
  const int64_t n = layer->hidden, at = (int64_t)t * rows;
  const range columns = share(n / LANES, w->thread, w->threads);
  const float *gates = a->gates + at * 4 * n, *u = a->u + at * n, *tanh_c = a->tanh_c + at * n;
  const float *h = a->h + w->offset[t] * n;
  const float *c_old = t == 0 ? a->c0 : a->c + w->offset[t - 1] * n;
  float *d = a->d_gates + at * 4 * n;
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      const float *g = gates + row * 4 * n + i;
      const vec out = load(g + 3 * n), squashed = load(tanh_c + row * n + i), left = load(dh + row * n + i);
      const vec hidden = load(h + row * n + i);
      store(d + row * 4 * n + 3 * n + i, left * fma_(-hidden, out, hidden));
      store(dc + row * n + i, fma_(left, fma_(-hidden, squashed, out), load(dc + row * n + i)));
    }
  if (rlstm) {
    wait_(w);
    apply_back(w, &layer->c, d + 3 * n, 4 * n, rows, w->own, dc, n, 0, columns);
  }
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      const float *g = gates + row * 4 * n + i;
      const vec in = load(g), value = load(g + n), keep = load(g + 2 * n), both = load(u + row * n + i);
      const vec old = load(c_old + row * n + i), arriving = load(dc + row * n + i), room = 1.0f - keep;
      const vec by_in = fma_(-both, in, both);
      vec slope_i = by_in, slope_f = old, written = in;
      if (capped) {
        const ivec open = in <= room;
        slope_i = select_(open, by_in, (vec){0});
        slope_f = select_(open, old, old - value);
        written = min_(in, room);
      }
      float *out = d + row * 4 * n + i;
      store(out, arriving * slope_i);
      store(out + n, arriving * fma_(-(written * value), value, written));
      store(out + 2 * n, arriving * (slope_f * (keep * room)));
    }
  wait_(w);
  if (rlstm) {
    apply_back(w, &layer->u, d + 2 * n, 4 * n, rows, w->own, dx, w->widest, 1, columns);
    for (int row = 0; row < rows; row++) EACH(i, columns) {
        const float *g = gates + row * 4 * n + i;
        const vec in = load(g), value = load(g + n), both = load(u + row * n + i), du = load(dx + row * w->widest + i);
        float *out = d + row * 4 * n + i;
        store(out, fma_(du, fma_(-both, in, both), load(out)));
        store(out + n, fma_(du, fma_(-both, value, in), load(out + n)));
      }
    wait_(w);
  }
  apply_back(w, &layer->x, d, 4 * n, rows, w->own, dx, w->widest, 1, share(layer->input / LANES, w->thread, w->threads));
  apply_back(w, &layer->h, d, 4 * n, rows, w->own, dh, n, 1, columns);
  for (int row = 0; row < rows; row++) EACH(i, columns)
      store(dc + row * n + i, load(dc + row * n + i) * load(gates + row * 4 * n + 2 * n + i));
  wait_(w);
}

/* One step back through the rounds: from gradients at the x and h that left them to those that entered. */
static void mogrify_back(work *w, const rl_layer *layer, const trail *a, int t, float *dx, float *dh) {
  const int rows = w->learners;
  const int64_t at = (int64_t)t * rows;
  for (int k = w->model->rounds - 1; k >= 0; k--) {
    const int64_t width = round_width(layer, k), from = round_width(layer, k + 1);
    const float *gate = a->gate + round_place(layer, k, w->kept) + at * width;
    const float *gated = a->gated + round_place(layer, k, w->kept) + at * width;
    float *d = a->d_gate + round_place(layer, k, w->learned) + at * width;
    float *target = k % 2 == 0 ? dx : dh, *source = k % 2 == 0 ? dh : dx;
    const int64_t ld_target = k % 2 == 0 ? w->widest : layer->hidden, ld_source = k % 2 == 0 ? layer->hidden : w->widest;
    const range columns = share(width / LANES, w->thread, w->threads);
    for (int row = 0; row < rows; row++) EACH(i, columns) {
        const vec y = load(gated + row * width + i), twice = load(gate + row * width + i);
        const vec arriving = load(target + row * ld_target + i);
        store(d + row * width + i, arriving * fma_(-0.5f * y, twice, y));
        store(target + row * ld_target + i, arriving * twice);
      }
    wait_(w);
    const range into = share(from / LANES, w->thread, w->threads);
    if (layer->down != NULL) {
      float *d_low = a->d_low + (k * w->learned + at) * layer->low;
      apply_back(w, &layer->up[k], d, width, rows, w->own, d_low, layer->low, 1,
                 share(layer->low / LANES, w->thread, w->threads));
      wait_(w);
      apply_back(w, &layer->down[k], d_low, layer->low, rows, w->own, source, ld_source, 0, into);
    } else {
      apply_back(w, &layer->up[k], d, width, rows, w->own, source, ld_source, 0, into);
    }
    wait_(w);
  }
}

/* The learning rows' vectors of an array over all tokens, side by side. */
static const float *gather(work *w, const float *from, int64_t width, float *room) {
  if (w->tokens == w->learned) return from;
  const range mine = share(w->steps, w->thread, w->threads);
  for (int t = mine.first; t < mine.last; t++)
    memcpy(room + (int64_t)t * w->learners * width, from + w->offset[t] * width, w->learners * width * sizeof(float));
  wait_(w);
  return room;
}

typedef struct {
  float *source, *low_d, *low_x, *dx, *dh, *dc;
} back_room;

/* The weights' gradients of one layer, from what its steps back have left. */
static void layer_gradients(work *w, const rl_layer *layer, const trail *a, const back_room *room) {
  const rl_model *model = w->model;
  const int64_t n = layer->hidden, rounds = model->rounds;
  const int64_t last_x = rounds > 0 ? (rounds - 1) / 2 * 2 : -1, last_h = rounds > 1 ? rounds / 2 * 2 - 1 : -1;
  const float *before = room->source + w->learned * w->widest; /* h of the step before, or at first h0 */
  float *h_in = room->source + w->learned * w->widest;
  if (w->thread == 0)
    for (int t = 0; t < w->steps; t++)
      memcpy(h_in + (int64_t)t * w->learners * n, t == 0 ? a->h0 : a->h + w->offset[t - 1] * n,
             w->learners * n * sizeof(float));
  wait_(w);
  const float *x = last_x < 0 ? gather(w, a->x, layer->input, room->source)
                              : a->gated + round_place(layer, (int)last_x, w->kept);
  weight_gradient(w, &layer->x, a->d_gates, 4 * n, x, layer->input, room->low_d, room->low_x);
  wait_(w);
  const float *h = last_h < 0 ? before : a->gated + round_place(layer, (int)last_h, w->kept);
  weight_gradient(w, &layer->h, a->d_gates, 4 * n, h, n, room->low_d, room->low_x);
  wait_(w);
  if (model->rlstm) {
    weight_gradient(w, &layer->u, a->d_gates + 2 * n, 4 * n, a->u, n, room->low_d, room->low_x);
    wait_(w);
    weight_gradient(w, &layer->c, a->d_gates + 3 * n, 4 * n, gather(w, a->c, n, room->source), n, room->low_d,
                    room->low_x);
    wait_(w);
  }
  bias_gradient(w, &layer->bias, a->d_gates, 4 * n);
  for (int k = 0; k < rounds; k++) {
    const int64_t width = round_width(layer, k), from = round_width(layer, k + 1);
    const float *source = before, *d = a->d_gate + round_place(layer, k, w->learned);
    if (k > 0) source = a->gated + round_place(layer, k - 1, w->kept);
    bias_gradient(w, &layer->gate[k], d, width);
    if (layer->down != NULL) {
      weight_gradient(w, &layer->down[k], a->d_low + k * w->learned * layer->low, layer->low, source, from,
                      room->low_d, room->low_x);
      wait_(w);
      source = a->low + k * w->kept * layer->low;
      weight_gradient(w, &layer->up[k], d, width, source, layer->low, room->low_d, room->low_x);
    } else {
      weight_gradient(w, &layer->up[k], d, width, source, from, room->low_d, room->low_x);
    }
    wait_(w);
  }
}

static void unroll_back(work *w, const rl_layer *layer, const trail *a, const float *arriving, const back_room *room) {
  const int rows = w->learners;
  const int64_t n = layer->hidden;
  const range columns = share(n / LANES, w->thread, w->threads), read = share(layer->input / LANES, w->thread, w->threads);
  for (int row = 0; row < rows; row++) EACH(i, columns) {
      store(room->dh + row * n + i, (vec){0});
      store(room->dc + row * n + i, (vec){0});
    }
  for (int t = w->steps - 1; t >= 0; t--) {
    const int64_t to = (int64_t)t * rows;
    for (int row = 0; row < rows; row++) EACH(i, columns)
        store(room->dh + row * n + i, load(room->dh + row * n + i) + load(arriving + (to + row) * n + i));
    cell_back(w, layer, a, t, room->dx, room->dh, room->dc);
    mogrify_back(w, layer, a, t, room->dx, room->dh);
    for (int row = 0; row < rows; row++) EACH(i, read)
        store(a->d_x + (to + row) * layer->input + i, load(room->dx + row * w->widest + i));
  }
  wait_(w);
  layer_gradients(w, layer, a, room);
}

/* ---- the embedding and the softmax ---------------------------------------------------------------------- */

static void embed(work *w, float *x) {
  const rl_model *model = w->model;
  const int64_t width = model->embedding_width;
  const range mine = share(w->steps, w->thread, w->threads);
  for (int t = mine.first; t < mine.last; t++)
    for (int row = 0; row < w->active[t]; row++) {
      const int64_t id = w->batch->row[row]->ids[t];
      float *out = x + (w->offset[t] + row) * width;
      if (model->embedding_half)
        for (int64_t i = 0; i < width; i += WIDTH)
          store(out + i, load_half((const uint16_t *)model->embedding + id * width + i));
      else
        memcpy(out, (const float *)model->embedding + id * width, width * sizeof(float));
    }
  wait_(w);
  if (model->input_own < 0 || model->input_r == 0 || w->adding[0] == 0) return;
  const int r = model->input_r, q = model->input_q;
  const range columns = share(width / LANES, w->thread, w->threads), middle = share(q / LANES, w->thread, w->threads);
  for (int t = 0; t < w->steps; t++) {
    for (int row = 0; row < w->adding[t]; row++) {
      const float *left = model->input_left + (int64_t)w->batch->row[row]->ids[t] * r, *own = w->own[row];
      EACH(i, middle) {
        vec sum = {0};
        if (own != NULL)
          for (int j = 0; j < r; j++) sum = fma_(all(left[j]), load(own + model->input_own + (int64_t)j * q + i), sum);
        store(w->middle + (int64_t)row * q + i, sum);
      }
    }
    wait_(w);
    product(&model->input_right, 1, w->middle, q, w->adding[t], x + w->offset[t] * width, width, 0, columns.first,
            columns.last);
    wait_(w);
  }
}

/* Gradients at what rows add to the embedding, from those at what the first layer read. */
static void embed_back(work *w, const float *d_x, float *low, float *left) {
  const rl_model *model = w->model;
  const int64_t width = model->embedding_width;
  const int q = model->input_q, r = model->input_r, rows = w->learners;
  if (model->input_own < 0) return;
  if (r > 0) {
    const range mine = share(q / LANES, w->thread, w->threads);
    product(&model->input_right, 0, d_x, width, (int)w->learned, low, q, 1, mine.first, mine.last);
    for (int64_t token = w->thread; token < w->learned; token += w->threads)
      memcpy(left + token * r, model->input_left + (int64_t)w->batch->row[token % rows]->ids[token / rows] * r,
             r * sizeof(float));
    wait_(w);
    outer_sums(w, model->input_own, left, r, r, low, q, q);
  } else {
    const range mine = share(width / LANES, w->thread, w->threads);
    for (int64_t token = 0; token < w->learned; token++) {
      const rl_row *row = w->batch->row[token % rows];
      float *to = w->gradient + token % rows * model->own_size + model->input_own +
                  (int64_t)row->ids[token / rows] * width;
      EACH(i, mine) store(to + i, load(to + i) + load(d_x + token * width + i));
    }
  }
  wait_(w);
}

/* Turn logits into log-probabilities, in place. */
static void log_softmax(float *logit, int64_t n) {
  vec top = load(logit);
  for (int64_t i = WIDTH; i < n; i += WIDTH) {
    const vec value = load(logit + i);
    top = select_(value > top, value, top);
  }
  float most = top[0], lane[LANES];
  for (int i = 1; i < WIDTH; i++) most = top[i] > most ? top[i] : most;
  vec sum[PARTS];
  for (int p = 0; p < PARTS; p++) sum[p] = (vec){0};
  for (int64_t i = 0; i < n; i += LANES)
    for (int p = 0; p < PARTS; p++) {
      const vec value = load(logit + i + p * WIDTH) - most;
      sum[p] = sum[p] + select_(value < all(-80.0f), (vec){0}, exp_(value));
    }
  for (int p = 0; p < PARTS; p++) store(lane + p * WIDTH, sum[p]);
  const float total = (float)log_d((double)tree(lane));
  for (int64_t i = 0; i < n; i += WIDTH) store(logit + i, (load(logit + i) - most) - total);
}

/* A token whose distribution is computed: its row, and which of the row's tokens it is. */
typedef struct {
  int32_t row, time;
} place;

typedef struct {
  place *place;      /* of the tokens of a list */
  const float **own; /* their rows' fast weights */
  float *features, *logits, *latents, *mixing, *parts;
  int64_t at_once;
} softmax_room;

/* Logits of `count` tokens from their features. */
static void logits_of(work *w, const softmax_room *room, const float *features, int64_t count, int adding, float *out) {
  const rl_model *model = w->model;
  const int64_t n = model->padded_vocab;
  const range columns = share(n / LANES, w->thread, w->threads);
  fill_bias(&model->output_bias, (int)count, room->own, out, n, 1, 0, columns);
  apply(w, &model->output, features, model->feature_width, (int)count, adding ? (int)count : 0, room->own, out, n, 0, 1,
        0, columns);
  wait_(w);
}

INLINE void scale(float *x, int64_t n, float by) {
  if (by != 1.0f)
    for (int64_t i = 0; i < n; i += WIDTH) store(x + i, load(x + i) * by);
}

/* Log-probabilities of a mixture of softmaxes (Yang et al. 2018) of `count` tokens, into logits. */
static void mixture_of_softmaxes(work *w, const softmax_room *room, int64_t count) {
  const rl_model *model = w->model;
  const int64_t n = model->padded_vocab, width = model->feature_width, components = model->components;
  const int64_t whole = components * width, mixing = model->mixing.shared.n;
  const range columns = share(whole / LANES, w->thread, w->threads), mixed = share(mixing / LANES, w->thread, w->threads);
  fill_bias(&model->projection_bias, (int)count, room->own, room->latents, whole, 1, 0, columns);
  apply(w, &model->projection, room->features, width, (int)count, 0, room->own, room->latents, whole, 0, 1, 0, columns);
  apply(w, &model->mixing, room->features, width, (int)count, 0, room->own, room->mixing, mixing, 1, 1, 0, mixed);
  for (int64_t token = 0; token < count; token++) EACH(i, columns)
      store(room->latents + token * whole + i, tanh_(load(room->latents + token * whole + i)));
  wait_(w);
  logits_of(w, room, room->latents, count * components, 0, room->parts);
  const range mine = share(count, w->thread, w->threads);
  for (int64_t token = mine.first; token < mine.last; token++) {
    float *weights = room->mixing + token * mixing, *out = room->logits + token * n;
    for (int64_t i = components; i < mixing; i++) weights[i] = -1e30f;
    log_softmax(weights, mixing);
    for (int64_t c = 0; c < components; c++) {
      float *part = room->parts + (token * components + c) * n;
      scale(part, n, w->batch->temperature);
      log_softmax(part, n);
    }
    for (int64_t i = 0; i < n; i += WIDTH) {
      vec top = load(room->parts + token * components * n + i) + weights[0], sum = {0}, value;
      for (int64_t c = 1; c < components; c++) {
        value = load(room->parts + (token * components + c) * n + i) + weights[c];
        top = select_(value > top, value, top);
      }
      for (int64_t c = 0; c < components; c++)
        sum = sum + exp_(load(room->parts + (token * components + c) * n + i) + weights[c] - top);
      for (int j = 0; j < WIDTH; j++) out[i + j] = top[j] + (float)log_d((double)sum[j]);
    }
  }
  wait_(w);
}

/* The distributions of `count` tokens of a list. Where they are learned from, logits become gradients. */
static void distribute(work *w, const softmax_room *room, int64_t count, int adding, int learn) {
  const rl_model *model = w->model;
  const int64_t n = model->padded_vocab;
  const float temperature = w->batch->temperature;
  if (model->components > 1)
    mixture_of_softmaxes(w, room, count);
  else
    logits_of(w, room, room->features, count, adding, room->logits);
  const range mine = share(count, w->thread, w->threads);
  for (int64_t token = mine.first; token < mine.last; token++) {
    const place at = room->place[token];
    const rl_row *row = w->batch->row[at.row];
    float *out = room->logits + token * n;
    if (model->components == 1) {
      scale(out, n, temperature);
      log_softmax(out, n);
    }
    if (row->log_probs != NULL) memcpy(row->log_probs + at.time * n, out, n * sizeof(float));
    if (!learn) continue;
    const vec factor = all(row->loss[at.time] * temperature);
    for (int64_t i = 0; i < n; i += WIDTH) {
      const vec value = load(out + i);
      store(out + i, select_(value < all(-80.0f), (vec){0}, exp_(value)) * factor);
    }
    out[row->targets[at.time]] -= factor[0];
  }
  wait_(w);
}

/* Which rows of a step are in a list: those that learn, others with fast weights, others without. */
enum { LEARNING, ADDING, PLAIN, LISTS };

INLINE int list_of(const work *w, int row) {
  return row < w->learners ? LEARNING : w->own[row] != NULL ? ADDING : PLAIN;
}

/* Distributions of all tokens; for those that are learned from also gradients at the features, [learned, ..]. */
static void softmax(work *w, const float *features, const softmax_room *room, float *d_features, float *low_d,
                    float *low_x) {
  const rl_model *model = w->model;
  const int64_t width = model->feature_width;
  const int64_t all_learned = w->learned;
  for (int list = 0; list < LISTS; list++) {
    int64_t count = 0, done = 0;
    for (int t = 0; t < w->steps; t++)
      for (int row = 0; row < w->active[t]; row++) {
        const int last = t == w->steps - 1 && row == w->active[t] - 1;
        if (list_of(w, row) == list && (list == LEARNING || w->batch->row[row]->log_probs != NULL)) {
          if (w->thread == 0) {
            room->place[count] = (place){row, t};
            room->own[count] = w->own[row];
            memcpy(room->features + count * width, features + (w->offset[t] + row) * width, width * sizeof(float));
          }
          count++;
        }
        /* A part ends with a whole step, so that gradients see the rows that learn side by side. */
        const int64_t room_left = room->at_once - count;
        const int ends = list == LEARNING ? row == w->learners - 1 && room_left < w->learners : room_left == 0;
        if (count == 0 || !(ends || last)) continue;
        wait_(w);
        distribute(w, room, count, list != PLAIN, list == LEARNING);
        if (list == LEARNING) {
          const range columns = share(width / LANES, w->thread, w->threads);
          w->learned = count;
          apply_back(w, &model->output, room->logits, model->padded_vocab, (int)count, room->own,
                     d_features + done * width, width, 1, columns);
          wait_(w);
          weight_gradient(w, &model->output, room->logits, model->padded_vocab, room->features, width, low_d, low_x);
          bias_gradient(w, &model->output_bias, room->logits, model->padded_vocab);
          w->learned = all_learned;
        }
        wait_(w);
        done += count, count = 0;
      }
  }
}

/* ---- fast weights --------------------------------------------------------------------------------------- */

/* Elements whose squares are added up together: norms are the same for any number of threads. */
#define BLOCK 4096

typedef struct {
  float squares, gradient_squares, greatest;
} block_sums;

INLINE int64_t blocks_of(const rl_model *model) { return (model->fast_weights + BLOCK - 1) / BLOCK; }

/* Where fast weights from `p` on stand, as one piece of LANES; NULL where they are scattered. */
INLINE float *piece(const rl_model *model, float *own, int64_t p, int count) {
  const int32_t *place = model->places + p;
  int32_t apart = count - LANES;
  for (int i = 0; i < count; i++) apart |= place[i] - place[0] - i;
  return apart == 0 ? own + place[0] : NULL;
}

/* Copy `count` values of `size` bytes: LANES of them, the usual, as one move that can be read back at once. */
INLINE void copy_few(void *to, const void *from, int count, int size) {
  if (count < LANES)
    memcpy(to, from, count * size);
  else
    memcpy(to, from, LANES * size);
}

/* The same; zeros fill up LANES. */
INLINE void some(void *to, const void *from, int count, int size) {
  if (count < LANES) memset(to, 0, LANES * size);
  copy_few(to, from, count, size);
}

/* A row's fast weights from `p` on, in single precision. */
INLINE void deltas_at(const rl_model *model, const rl_row *row, int64_t p, int count, float *out) {
  uint16_t half[LANES];
  if (row->delta == NULL) {
    memset(out, 0, LANES * sizeof(float));
  } else if (model->half) {
    some(half, (const uint16_t *)row->delta + p, count, sizeof(uint16_t));
    for (int i = 0; i < LANES; i += WIDTH) store(out + i, load_half(half + i));
  } else {
    some(out, (const float *)row->delta + p, count, sizeof(float));
  }
}

/* Fast weights from `p` on that are done at once, of those before `last`. */
#define AT_ONCE(p, last) ((last) - (p) < LANES ? (int)((last) - (p)) : LANES)

/* Put the rows' fast weights where their cores and biases are, and make room for gradients. */
static void expand(work *w) {
  const rl_model *model = w->model;
  const range size = share(model->own_size, w->thread, w->threads);
  const range mine = share(model->fast_weights, w->thread, w->threads);
  for (int row = 0; row < w->rows; row++)
    if (w->own[row] != NULL)
      memset((float *)w->own[row] + size.first, 0, (int64_t)(size.last - size.first) * sizeof(float));
  for (int row = 0; row < w->learners; row++)
    memset(w->gradient + row * model->own_size + size.first, 0, (int64_t)(size.last - size.first) * sizeof(float));
  wait_(w);
  for (int row = 0; row < w->rows; row++) {
    float *own = (float *)w->own[row];
    if (own == NULL || w->batch->row[row]->delta == NULL) continue;
    for (int64_t p = mine.first; p < mine.last; p += LANES) {
      const int count = AT_ONCE(p, mine.last);
      float delta[LANES];
      deltas_at(model, w->batch->row[row], p, count, delta);
      float *to = piece(model, own, p, count);
      if (to != NULL)
        memcpy(to, delta, sizeof delta);
      else
        for (int i = 0; i < count; i++) own[model->places[p + i]] = delta[i];
    }
  }
  wait_(w);
}

/* One step of the rule for a block of a row's fast weights; the sums that its guards need. */
static block_sums move_block(const rl_model *model, const rl_row *row, float *gradient, float *moved,
                             int64_t first, int64_t last) {
  float lane[3][LANES], shrink[LANES], precision[LANES];
  vec squares[PARTS], gradient_squares[PARTS], greatest[PARTS];
  for (int i = 0; i < PARTS; i++) squares[i] = gradient_squares[i] = greatest[i] = (vec){0};
  for (int i = 0; i < LANES; i++) shrink[i] = model->shrink_all, precision[i] = 1.0f;
  for (int64_t p = first; p < last; p += LANES) {
    const int count = AT_ONCE(p, last);
    float own[LANES] = {0}, delta[LANES];
    const float *from = piece(model, gradient, p, count);
    if (from != NULL)
      memcpy(own, from, sizeof own);
    else
      for (int i = 0; i < count; i++) own[i] = gradient[model->places[p + i]];
    deltas_at(model, row, p, count, delta);
    if (model->shrink != NULL) some(shrink, model->shrink + p, count, sizeof(float));
    if (model->precision != NULL) some(precision, model->precision + p, count, sizeof(float));
    for (int part = 0; part < PARTS; part++) {
      const int i = part * WIDTH;
      const vec g = load(own + i), d = load(delta + i);
      const vec value = (d - d * load(shrink + i)) - (g * row->rate) * load(precision + i);
      const vec size = select_(value < (vec){0}, -value, value);
      store(moved + p + i, value);
      squares[part] = squares[part] + value * value;
      gradient_squares[part] = gradient_squares[part] + g * g;
      greatest[part] = select_(size > greatest[part], size, greatest[part]);
    }
    if (row->gradient != NULL) copy_few(row->gradient + p, own, count, sizeof(float));
  }
  for (int i = 0; i < PARTS; i++) {
    store(lane[0] + i * WIDTH, squares[i]);
    store(lane[1] + i * WIDTH, gradient_squares[i]);
    store(lane[2] + i * WIDTH, greatest[i]);
  }
  block_sums sums = {tree(lane[0]), tree(lane[1]), 0.0f};
  for (int i = 0; i < LANES; i++) sums.greatest = lane[2][i] > sums.greatest ? lane[2][i] : sums.greatest;
  return sums;
}

/* The fast weights of a row after its step. */
static void put_moved(const rl_model *model, const rl_row *row, const float *moved, float by, int64_t first, int64_t last) {
  for (int64_t p = first; p < last; p += LANES) {
    const int count = AT_ONCE(p, last);
    float value[LANES];
    uint16_t half[LANES];
    for (int i = 0; i < LANES; i += WIDTH) {
      store(value + i, load(moved + p + i) * by);
      store_half(half + i, load(value + i));
    }
    if (model->half)
      copy_few((uint16_t *)row->delta_after + p, half, count, sizeof(uint16_t));
    else
      copy_few((float *)row->delta_after + p, value, count, sizeof(float));
  }
}

static void step_rows(work *w, float *moved, block_sums *sums) {
  const rl_model *model = w->model;
  const int64_t count = model->fast_weights, blocks = blocks_of(model), stride = blocks * BLOCK;
  const range mine = share(blocks, w->thread, w->threads);
  for (int row = 0; row < w->learners; row++)
    for (int64_t b = mine.first; b < mine.last; b++)
      sums[row * blocks + b] =
          move_block(model, w->batch->row[row], w->gradient + row * model->own_size, moved + row * stride, b * BLOCK,
                     (b + 1) * BLOCK < count ? (b + 1) * BLOCK : count);
  wait_(w);
  for (int row = 0; row < w->learners; row++) {
    const rl_row *r = w->batch->row[row];
    block_sums all_ = {0};
    for (int64_t b = 0; b < blocks; b++) {
      const block_sums own = sums[row * blocks + b];
      all_.squares += own.squares, all_.gradient_squares += own.gradient_squares;
      all_.greatest = own.greatest > all_.greatest ? own.greatest : all_.greatest;
    }
    rl_step step = {__builtin_sqrtf(all_.squares), __builtin_sqrtf(all_.gradient_squares), 1.0f, 0};
    step.taken = step.norm < __builtin_inff();
    if (step.taken && step.norm > model->max_norm) step.scale = model->max_norm / step.norm;
    if (model->half && !(all_.greatest * step.scale < 65520.0f)) step.taken = 0;
    if (r->step != NULL && w->thread == 0) *r->step = step;
    if (r->delta_after == NULL) continue;
    const int64_t first = mine.first * BLOCK, last = mine.last * BLOCK < count ? mine.last * BLOCK : count;
    const int size = model->half ? sizeof(uint16_t) : sizeof(float);
    if (step.taken)
      put_moved(model, r, moved + row * stride, step.scale, first, last);
    else if (r->delta == NULL)
      memset((char *)r->delta_after + first * size, 0, (last - first) * size);
    else
      memcpy((char *)r->delta_after + first * size, (const char *)r->delta + first * size, (last - first) * size);
  }
}

/* ---- a batch -------------------------------------------------------------------------------------------- */

/* Everything a batch needs, from its arena. */
typedef struct {
  work w;
  trail *trail;
  float **source; /* what each layer reads, and last the features */
  softmax_room softmax;
  back_room back;
  float *arriving, *d_features;
  float *moved; /* [learners, whole blocks of fast weights] after a step */
  block_sums *sums;
  int lowest; /* the first layer to go back to */
} plan;

/* Whether a row adds to the weights of the model; one that learns may begin with nothing. */
static int adds(const rl_model *model, const rl_row *row) {
  return !model->whole && model->fast_weights > 0 && (row->delta != NULL || row->targets != NULL);
}

static int has_own(const rl_model *model, const rl_layer *layer) {
  if (layer->x.own >= 0 || layer->h.own >= 0 || layer->u.own >= 0 || layer->c.own >= 0 || layer->bias.own >= 0) return 1;
  for (int k = 0; k < model->rounds; k++)
    if (layer->up[k].own >= 0 || (layer->down != NULL && layer->down[k].own >= 0) || layer->gate[k].own >= 0) return 1;
  return 0;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static void axes(const rl_weight *weight, int64_t *widest) {
  if (weight->own >= 0) *widest = most(*widest, most(weight->r, weight->q));
}

static void *take(rl_arena *arena, int64_t bytes) { return rl_take(arena, (bytes + 3) / 4); }

/* Lay out a batch in its arena. While that has no memory, nothing is written but sizes. */
static plan lay_out(rl_batch *batch) {
  const rl_model *model = batch->model;
  rl_arena *arena = batch->arena;
  const int real = arena->memory != NULL;
  plan p = {.w = {.batch = batch, .model = model, .rows = batch->rows, .threads = batch->team->size}};
  work *w = &p.w;
  for (int row = 0; row < batch->rows; row++) {
    w->learners += batch->row[row]->targets != NULL;
    w->steps = (int)most(w->steps, batch->row[row]->length);
  }
  w->active = take(arena, w->steps * sizeof(int32_t));
  w->adding = take(arena, w->steps * sizeof(int32_t));
  w->offset = take(arena, (w->steps + 1) * sizeof(int64_t));
  w->own = take(arena, batch->rows * sizeof(float *));
  int64_t adders = 0;
  for (int row = 0; row < batch->rows; row++) adders += adds(model, batch->row[row]);
  float *own = rl_take(arena, adders * model->own_size);
  w->gradient = rl_take(arena, w->learners * model->own_size);
  p.moved = rl_take(arena, w->learners * blocks_of(model) * BLOCK);
  p.sums = take(arena, (int64_t)w->learners * blocks_of(model) * sizeof(block_sums));
  for (int row = 0; row < batch->rows && real; row++) {
    w->own[row] = adds(model, batch->row[row]) ? own : NULL;
    if (w->own[row] != NULL) own += model->own_size;
  }
  for (int t = 0; t < w->steps; t++) {
    int active = 0, adding = 0;
    for (int row = 0; row < batch->rows && batch->row[row]->length > t; row++) {
      active++;
      if (adds(model, batch->row[row])) adding = row + 1;
    }
    if (real) w->active[t] = active, w->adding[t] = adding, w->offset[t] = w->tokens;
    w->tokens += active;
  }
  if (real) w->offset[w->steps] = w->tokens;
  w->learned = (int64_t)w->learners * w->steps;
  w->kept = w->learned + w->rows - w->learners;

  int64_t axis = most(model->input_r, model->input_q);
  w->widest = most(model->embedding_width, model->feature_width);
  axes(&model->output, &axis);
  p.lowest = model->input_own >= 0 ? 0 : model->layers;
  for (int l = model->layers - 1; l >= 0; l--) {
    const rl_layer *layer = &model->layer[l];
    if (has_own(model, layer)) p.lowest = l;
    w->width += layer->units;
    w->widest = most(w->widest, most(layer->input, most(layer->hidden, layer->low)));
    axes(&layer->x, &axis), axes(&layer->h, &axis), axes(&layer->u, &axis), axes(&layer->c, &axis);
    for (int k = 0; k < model->rounds; k++) {
      axes(&layer->up[k], &axis);
      if (layer->down != NULL) axes(&layer->down[k], &axis);
    }
  }
  if (model->input_own >= 0) p.lowest = 0;
  softmax_room *s = &p.softmax;
  const int64_t vocab = model->padded_vocab;
  s->at_once = most(most(w->learners, 1), most(16, ((int64_t)1 << 20) / (vocab * model->components)));
  s->at_once = s->at_once < w->tokens ? s->at_once : w->tokens;
  const int64_t softmaxed = s->at_once * model->components;
  s->place = take(arena, s->at_once * sizeof(place));
  s->own = take(arena, softmaxed * sizeof(float *));
  s->features = rl_take(arena, s->at_once * model->feature_width);
  s->logits = rl_take(arena, s->at_once * vocab);
  if (model->components > 1) {
    s->latents = rl_take(arena, softmaxed * model->feature_width);
    s->mixing = rl_take(arena, s->at_once * model->mixing.shared.n);
    s->parts = rl_take(arena, softmaxed * vocab);
    for (int64_t i = 0; i < softmaxed && real; i++) s->own[i] = NULL;
  }
  const int64_t at_once = most(most(w->rows, softmaxed), 1);
  w->low = rl_take(arena, at_once * axis);
  w->middle = rl_take(arena, at_once * axis);

  p.trail = take(arena, model->layers * sizeof(trail));
  p.source = take(arena, (model->layers + 1) * sizeof(float *));
  const int learns = w->learned > 0;
  for (int l = 0; l < model->layers; l++) {
    const rl_layer *layer = &model->layer[l];
    const int64_t n = layer->hidden, rounds = round_place(layer, model->rounds, 1);
    trail a = {
        .x = rl_take(arena, w->tokens * layer->input),
        .h = rl_take(arena, w->tokens * n),
        .c = rl_take(arena, w->tokens * n),
        .gates = rl_take(arena, w->kept * 4 * n),
        .u = rl_take(arena, w->kept * n),
        .tanh_c = rl_take(arena, w->kept * n),
        .low = rl_take(arena, w->kept * layer->low * model->rounds),
        .gate = rl_take(arena, w->kept * rounds),
        .gated = rl_take(arena, w->kept * rounds),
        .h0 = rl_take(arena, w->rows * n),
        .c0 = rl_take(arena, w->rows * n),
    };
    if (learns) {
      a.d_gates = rl_take(arena, w->learned * 4 * n);
      a.d_low = rl_take(arena, w->learned * layer->low * model->rounds);
      a.d_gate = rl_take(arena, w->learned * rounds);
      a.d_x = rl_take(arena, w->learned * layer->input);
    }
    if (real) p.trail[l] = a, p.source[l] = a.x;
  }
  float *features = rl_take(arena, w->tokens * model->feature_width);
  if (real) p.source[model->layers] = features;
  if (learns) {
    p.d_features = rl_take(arena, w->learned * w->widest);
    p.arriving = rl_take(arena, w->learned * w->widest);
    p.back.source = rl_take(arena, 2 * w->learned * w->widest);
    p.back.low_d = rl_take(arena, w->learned * axis);
    p.back.low_x = rl_take(arena, w->learned * axis);
    p.back.dx = rl_take(arena, w->learners * w->widest);
    p.back.dh = rl_take(arena, w->learners * w->widest);
    p.back.dc = rl_take(arena, w->learners * w->widest);
  }
  return p;
}

/* Copy the rows' states into the layers' arrays, or their last ones back. */
static void load_states(plan *p) {
  work *w = &p->w;
  int64_t at = 0;
  for (int l = 0; l < w->model->layers; l++) {
    const int64_t n = w->model->layer[l].hidden, units = w->model->layer[l].units;
    for (int row = w->thread; row < w->rows; row += w->threads) {
      float *h = p->trail[l].h0 + row * n, *c = p->trail[l].c0 + row * n;
      const float *state = w->batch->row[row]->state + at;
      memcpy(h, state, units * sizeof(float)), memset(h + units, 0, (n - units) * sizeof(float));
      memcpy(c, state + w->width, units * sizeof(float)), memset(c + units, 0, (n - units) * sizeof(float));
    }
    at += units;
  }
}

static void store_states(plan *p) {
  work *w = &p->w;
  int64_t at = 0;
  for (int l = 0; l < w->model->layers; l++) {
    const int64_t n = w->model->layer[l].hidden, units = w->model->layer[l].units;
    for (int row = w->thread; row < w->rows; row += w->threads) {
      const rl_row *own = w->batch->row[row];
      if (own->length == 0) continue;
      const int64_t token = w->offset[own->length - 1] + row;
      memcpy(own->state + at, p->trail[l].h + token * n, units * sizeof(float));
      memcpy(own->state + w->width + at, p->trail[l].c + token * n, units * sizeof(float));
    }
    at += units;
  }
}

INLINE void add_to(work *w, float *out, const float *a, const float *b, int64_t count) {
  const range mine = share(count / LANES, w->thread, w->threads);
  EACH(i, mine) store(out + i, load(a + i) + load(b + i));
  wait_(w);
}

INLINE void copy_to(work *w, float *out, const float *a, int64_t count) {
  const range mine = share(count / LANES, w->thread, w->threads);
  EACH(i, mine) store(out + i, load(a + i));
  wait_(w);
}

static void learn(plan *p) {
  work *w = &p->w;
  const rl_model *model = w->model;
  const int top = model->layers - 1;
  if (p->lowest > top) return;
  copy_to(w, p->arriving, p->d_features, w->learned * model->feature_width);
  for (int l = top; l >= p->lowest; l--) {
    const rl_layer *layer = &model->layer[l];
    unroll_back(w, layer, &p->trail[l], p->arriving, &p->back);
    wait_(w);
    if (l == p->lowest) break;
    const int64_t count = w->learned * layer->input;
    if (model->stacking == RL_PLAIN)
      copy_to(w, p->arriving, p->trail[l].d_x, count);
    else
      add_to(w, p->arriving, model->stacking == RL_SKIP ? p->d_features : p->arriving, p->trail[l].d_x, count);
  }
  if (p->lowest == 0) embed_back(w, p->trail[0].d_x, p->back.low_d, p->back.low_x);
}

int64_t FOR_SET(rl_room)(rl_batch *batch) {
  rl_arena nothing = {0}, *own = batch->arena;
  batch->arena = &nothing;
  take(&nothing, sizeof(plan));
  lay_out(batch);
  batch->arena = own;
  return nothing.used;
}

void FOR_SET(rl_lay_out)(rl_batch *batch) {
  batch->plan = take(batch->arena, sizeof(plan));
  *(plan *)batch->plan = lay_out(batch);
}

void FOR_SET(rl_read)(rl_batch *batch, int thread) {
  const rl_model *model = batch->model;
  plan p = *(const plan *)batch->plan;
  work *w = &p.w;
  w->thread = thread;
  load_states(&p);
  expand(w);
  embed(w, p.source[0]);
  for (int l = 0; l < model->layers; l++) {
    const rl_layer *layer = &model->layer[l];
    unroll(w, layer, &p.trail[l]);
    /* What is read next, and in the end the features: all layers' outputs, or the last one's. */
    float *next = p.source[l + 1], *features = p.source[model->layers];
    const int64_t count = w->tokens * layer->hidden;
    const int last = l == model->layers - 1;
    if (model->stacking == RL_PLAIN || (l == 0 && last)) {
      copy_to(w, next, p.trail[l].h, count);
    } else if (model->stacking == RL_RESIDUAL) {
      if (l == 0)
        copy_to(w, next, p.trail[l].h, count);
      else
        add_to(w, next, p.source[l], p.trail[l].h, count);
    } else {
      if (l == 0)
        copy_to(w, features, p.trail[l].h, count);
      else
        add_to(w, features, features, p.trail[l].h, count);
      if (!last) copy_to(w, next, p.trail[l].h, count);
    }
  }
  softmax(w, p.source[model->layers], &p.softmax, p.d_features, p.back.low_d, p.back.low_x);
  store_states(&p);
  if (w->learned > 0) {
    learn(&p);
    wait_(w);
    step_rows(w, p.moved, p.sums);
  }
  wait_(w);
}

/* ---- mixtures of experts -------------------------------------------------------------------------------- */

#define FLOOR (-9999.0f)

/* Log-probabilities of WIDTH tokens from `v` on, between FLOOR and 0. */
INLINE vec mixed_at(const rl_token *token, int64_t v) {
  vec best = all(-__builtin_inff()), sum = {0};
  for (int k = 0; k < token->experts; k++)
    if (token->weight[k] > 0.0f) {
      const vec value = load(token->row[k] + v);
      best = select_(value > best, value, best);
    }
  best = select_(best < all(FLOOR), all(FLOOR), best);
  if (token->experts > 1) {
    for (int k = 0; k < token->experts; k++)
      if (token->weight[k] > 0.0f) sum = fma_(exp_(load(token->row[k] + v) - best), all(token->weight[k]), sum);
    best = best + log_(sum);
  }
  best = select_(best < all(FLOOR), all(FLOOR), best);
  return min_(best, (vec){0});
}

void FOR_SET(rl_distribution)(const rl_token *token, int32_t *rank, float *entropy, float *mixed) {
  const vec here = mixed_at(token, token->target / WIDTH * WIDTH);
  const float own = here[token->target % WIDTH];
  vec sum[PARTS];
  float lane[LANES];
  int32_t ahead = 0;
  for (int p = 0; p < PARTS; p++) sum[p] = (vec){0};
  for (int64_t i = 0; i < token->vocab; i += LANES)
    for (int p = 0; p < PARTS; p++) {
      const int64_t v = i + p * WIDTH;
      const vec value = mixed_at(token, v);
      if (mixed != NULL) store(mixed + v, value);
      if (rank == NULL) continue;
      vec probability = select_(value < all(-80.0f), (vec){0}, exp_(value));
      for (int j = 0; j < WIDTH; j++) {
        if (v + j >= token->vocab)
          probability[j] = 0.0f;
        else
          ahead += value[j] > own || (value[j] == own && v + j < token->target);
      }
      sum[p] = fma_(-probability, value, sum[p]);
    }
  if (rank == NULL) return;
  for (int p = 0; p < PARTS; p++) store(lane + p * WIDTH, sum[p]);
  *rank = ahead + 1;
  *entropy = tree(lane);
}

/* ---- products of experts -------------------------------------------------------------------------------- */

INLINE vec blended_at(int inputs, const float *const *row, const float *weight, int64_t v) {
  vec sum = {0};
  for (int k = 0; k < inputs; k++) {
    const vec value = load(row[k] + v);
    sum = fma_(select_(value < all(RL_LEAST), all(RL_LEAST), value), all(weight[k]), sum);
  }
  return sum;
}

/* Sums over the vocabulary, always as the same tree. */
INLINE float summed(const vec sum[PARTS]) {
  float lane[LANES];
  for (int p = 0; p < PARTS; p++) store(lane + p * WIDTH, sum[p]);
  return tree(lane);
}

void FOR_SET(rl_blend)(int inputs, int64_t vocab, const float *const *row, const float *weight, float *out,
                       float *expected) {
  float best = -__builtin_inff();
  for (int64_t v = 0; v < vocab; v += WIDTH) {
    const vec value = blended_at(inputs, row, weight, v);
    store(out + v, value);
    for (int j = 0; j < WIDTH && v + j < vocab; j++) best = value[j] > best ? value[j] : best;
  }
  /* Many likelihoods beside a great one: what is rounded away of them is carried on (Kahan 1965). */
  vec total[PARTS], lost[PARTS], sum[MOST_INPUTS][PARTS];
  for (int p = 0; p < PARTS; p++) {
    total[p] = lost[p] = (vec){0};
    for (int k = 0; k < inputs; k++) sum[k][p] = (vec){0};
  }
  for (int64_t i = 0; i < vocab; i += LANES)
    for (int p = 0; p < PARTS; p++) {
      const int64_t v = i + p * WIDTH;
      const vec value = load(out + v) - all(best);
      vec likelihood = select_(value < all(-80.0f), (vec){0}, exp_(value));
      for (int j = 0; j < WIDTH; j++)
        if (v + j >= vocab) likelihood[j] = 0.0f;
      const vec more = likelihood - lost[p], next = total[p] + more;
      lost[p] = (next - total[p]) - more;
      total[p] = next;
      if (expected == NULL) continue;
      for (int k = 0; k < inputs; k++) {
        const vec own = load(row[k] + v);
        sum[k][p] = fma_(likelihood, select_(own < all(RL_LEAST), all(RL_LEAST), own), sum[k][p]);
      }
    }
  const float whole = summed(total);
  const vec shift = log_(all(whole)); /* apart from `best`, which may be far from 0: their sum would be rounded */
  for (int64_t v = 0; v < vocab; v += WIDTH) store(out + v, min_(load(out + v) - all(best) - shift, (vec){0}));
  if (expected == NULL) return;
  for (int k = 0; k < inputs; k++) expected[k] = summed(sum[k]) / whole;
}

void FOR_SET(rl_masses)(int64_t vocab, int64_t leaves, const float *row, float *mass) {
  for (int64_t v = 0; v < vocab; v += WIDTH) {
    const vec value = load(row + v);
    store(mass + leaves + v, exp_(select_(value < all(RL_LEAST), all(RL_LEAST), value)));
  }
  for (int64_t v = vocab; v < leaves; v++) mass[leaves + v] = 0.0f;
  for (int64_t nodes = leaves / 2; nodes > 0; nodes /= 2) {
    const float *restrict below = mass + 2 * nodes;
    float *restrict own = mass + nodes;
    for (int64_t n = 0; n < nodes; n++) own[n] = below[2 * n] + below[2 * n + 1];
  }
}

void FOR_SET(rl_log_odds)(int64_t count, const float *left, const float *right, float furthest, float *out) {
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vec odds = min_(log_(load(right + i) / load(left + i)), all(furthest));
    store(out + i, select_(odds < all(-furthest), all(-furthest), odds));
  }
}

void FOR_SET(rl_sides)(int64_t count, const float *odds, float *ratio, float *log_likelier) {
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vec value = load(odds + i), e = exp_(min_(value, -value));
    store(ratio + i, e);
    store(log_likelier + i, -log_(1.0f + e));
  }
}
