/* The pool of threads, the choice of an instruction set, and the mixture. */
#include "rlstm.h"

#include <stdlib.h>
#include <time.h>

#include "lanes.h"
#include "team.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <pthread.h>
#include <sched.h>
#endif

/* ---- instruction sets ----------------------------------------------------------------------------------- */

#define DECLARE(set)                              \
  int64_t rl_room_##set(rl_batch *batch);         \
  void rl_lay_out_##set(rl_batch *batch);         \
  void rl_read_##set(rl_batch *batch, int thread); \
  void rl_distribution_##set(const rl_token *token, int32_t *rank, float *entropy, float *mixed); \
  void rl_blend_##set(int inputs, int64_t vocab, const float *const *row, const float *weight, float *out, \
                      float *expected); \
  void rl_masses_##set(int64_t vocab, int64_t leaves, const float *row, float *mass); \
  void rl_log_odds_##set(int64_t count, const float *left, const float *right, float furthest, float *out); \
  void rl_sides_##set(int64_t count, const float *odds, float *ratio, float *log_likelier);
#define KERNELS(set)                                                                                     \
  {rl_room_##set,  rl_lay_out_##set, rl_read_##set, rl_distribution_##set, rl_blend_##set, rl_masses_##set, \
   rl_log_odds_##set, rl_sides_##set}

#if defined(__x86_64__) || defined(_M_X64)
DECLARE(avx512)
DECLARE(avx2)
#endif
DECLARE(portable)

typedef struct {
  const char *name, *identity;
  rl_kernels kernels;
} instruction_set;

static const instruction_set sets[] = {
#if defined(__x86_64__) || defined(_M_X64)
    {"avx512", "fma", KERNELS(avx512)},
    {"avx2", "fma", KERNELS(avx2)},
#endif
#if defined(__aarch64__)
    {"neon", "fma", KERNELS(portable)},
#else
    {"portable", "plain", KERNELS(portable)},
#endif
};

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

/* Whether processor and system offer a set: by its feature bits, and the registers that the system saves. */
static int offered(int i) {
  const unsigned fma = 1u << 12, saved_by_system = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5, avx512f = 1u << 16;
  unsigned a, b, c, d, registers, high;
  if (i > 1) return 1;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | saved_by_system | f16c)) != (fma | saved_by_system | f16c)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2) || (i == 0 && !(b & avx512f))) return 0;
  __asm__("xgetbv" : "=a"(registers), "=d"(high) : "c"(0));
  const unsigned wanted = i == 0 ? 0xe6 : 0x6;
  return (registers & wanted) == wanted;
}
#else
static int offered(int i) { return i >= 0; }
#endif

static const instruction_set *choose(void) {
  const char *asked = getenv("RLSTM_INSTRUCTIONS");
  const int count = sizeof sets / sizeof *sets;
  for (int i = 0; i < count; i++) {
    if (!offered(i)) continue;
    if (asked == NULL || strcmp(asked, sets[i].name) == 0) return &sets[i];
  }
  return &sets[count - 1];
}

static const instruction_set *chosen(void) {
  static const instruction_set *_Atomic set;
  const instruction_set *known = set;
  if (known == NULL) set = known = choose();
  return known;
}

const rl_kernels *rl_chosen_kernels(void) { return &chosen()->kernels; }

const char *rl_instructions(void) { return chosen()->name; }

const char *rl_identity(void) { return chosen()->identity; }

#if !defined(RL_SOURCES)
#define RL_SOURCES ""
#endif

const char *rl_sources(void) { return RL_SOURCES; }

/* ---- threads -------------------------------------------------------------------------------------------- */

#if defined(_WIN32)
typedef SRWLOCK mutex;
typedef CONDITION_VARIABLE condition;
typedef HANDLE thread;
#define LOCK AcquireSRWLockExclusive
#define UNLOCK ReleaseSRWLockExclusive
#define WAIT(c, m) SleepConditionVariableSRW(c, m, INFINITE, 0)
#define WAKE WakeAllConditionVariable
#define GIVE_WAY() SwitchToThread()
#define RUN(name) static DWORD WINAPI name(LPVOID argument)
static int begin(thread *t, LPTHREAD_START_ROUTINE run, void *argument) {
  *t = CreateThread(NULL, 0, run, argument, 0, NULL);
  return *t == NULL;
}
static void join(thread t) { WaitForSingleObject(t, INFINITE), CloseHandle(t); }
static void make(mutex *m, condition *c) { InitializeSRWLock(m), InitializeConditionVariable(c); }
#else
typedef pthread_mutex_t mutex;
typedef pthread_cond_t condition;
typedef pthread_t thread;
#define LOCK pthread_mutex_lock
#define UNLOCK pthread_mutex_unlock
#define WAIT(c, m) pthread_cond_wait(c, m)
#define WAKE pthread_cond_broadcast
#define GIVE_WAY() sched_yield()
#define RUN(name) static void *name(void *argument)
static int begin(thread *t, void *(*run)(void *), void *argument) { return pthread_create(t, NULL, run, argument); }
static void join(thread t) { pthread_join(t, NULL); }
static void make(mutex *m, condition *c) { pthread_mutex_init(m, NULL), pthread_cond_init(c, NULL); }
#endif

/* Turns of an empty loop before a waiting thread lets others run. */
#define SPINS 4000

INLINE void pause_(void) {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static double nanoseconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

void rl_barrier(rl_team *team) {
  const unsigned turn = atomic_load_explicit(&team->turn, memory_order_acquire);
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == team->size - 1) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->turn, turn + 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&team->turn, memory_order_acquire) == turn; spins++)
    if (spins < SPINS)
      pause_();
    else
      GIVE_WAY();
}

/* With the address sanitizer pieces of an arena have gaps between them that nobody may touch, and begin as NaN. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define GAP 64
#define OPEN(memory, size) __asan_unpoison_memory_region(memory, size)
#define SHUT(memory, size) (memset(memory, 0xff, size), __asan_poison_memory_region(memory, size))
#else
#define GAP 0
#define OPEN(memory, size) (void)(memory)
#define SHUT(memory, size) (void)(memory)
#endif

float *rl_take(rl_arena *arena, int64_t count) {
  float *memory = arena->memory == NULL ? NULL : (float *)(arena->memory + arena->used);
  if (memory != NULL) OPEN(memory, count * 4);
  arena->used += (count * 4 + 63) / 64 * 64 + GAP;
  return memory;
}

/* Batches of a window, or what is read on in memories: every thread takes whole ones, each the next that nobody has begun,
 * or all of them together a single batch. */
typedef struct {
  rl_batch *batch;
  const rl_row **row;
  rl_recall *recall; /* NULL in a window */
  int32_t count;
  int together;
  atomic_int begun;
} window;

/* With fewer rows for each thread, threads share columns and not rows. */
#define ROWS_A_THREAD 6

/* Windows of as many rows: nanoseconds a multiply-add when one thread reads them and when all do; how many are yet to be
 * read the way that was faster, and how many were to be. */
typedef struct {
  double pace[2];
  int left, kept;
} experience;

struct rl_pool {
  int threads;
  thread *thread;
  rl_arena *arena; /* one a thread */
  rl_team team, alone;
  mutex lock;
  condition work, done;
  atomic_uint number; /* of the window that is to be done */
  atomic_int left;    /* threads that are not done with it */
  int closing;
  window window;
  atomic_int failed;
  experience *experience; /* [2, fewer rows than are cut], of windows that do not learn and of those that do */
};

typedef struct {
  rl_pool *pool;
  int number;
} worker;

static int fits(rl_arena *arena, int64_t size) {
  arena->used = 0;
  if (arena->size < size) {
    free(arena->whole);
    *arena = (rl_arena){.whole = malloc(size + size / 8 + 64)};
    if (arena->whole == NULL) return 0;
    arena->memory = (char *)arena->whole + (64 - (uintptr_t)arena->whole % 64) % 64;
    arena->size = size + size / 8;
  } else {
    OPEN(arena->memory, arena->size);
  }
  SHUT(arena->memory, arena->size);
  return 1;
}

static int prepare(rl_batch *batch) {
  const rl_kernels *kernels = &chosen()->kernels;
  if (!fits(batch->arena, kernels->room(batch))) return 0;
  kernels->lay_out(batch);
  return 1;
}

static void take_part(rl_pool *pool, int number) {
  window *w = &pool->window;
  const rl_kernels *kernels = &chosen()->kernels;
  if (w->together) {
    kernels->read(w->batch, number);
    return;
  }
  for (int i; (i = atomic_fetch_add(&w->begun, 1)) < w->count;) {
    if (w->recall != NULL) {
      rl_recall_one(&w->recall[i]);
      continue;
    }
    rl_batch *batch = &w->batch[i];
    batch->arena = &pool->arena[number];
    if (!prepare(batch)) {
      atomic_store(&pool->failed, 1);
      return;
    }
    kernels->read(batch, 0);
  }
}

RUN(work_on) {
  worker own = *(worker *)argument;
  free(argument);
  rl_pool *pool = own.pool;
  unsigned known = 0;
  for (;;) {
    for (int spins = 0; spins < SPINS * 4 && atomic_load(&pool->number) == known; spins++) pause_();
    LOCK(&pool->lock);
    while (atomic_load(&pool->number) == known && !pool->closing) WAIT(&pool->work, &pool->lock);
    const int closing = pool->closing;
    known = atomic_load(&pool->number);
    UNLOCK(&pool->lock);
    if (closing) return 0;
    take_part(pool, own.number);
    if (atomic_fetch_sub(&pool->left, 1) == 1) {
      LOCK(&pool->lock);
      WAKE(&pool->done);
      UNLOCK(&pool->lock);
    }
  }
}

rl_pool *rl_pool_new(int32_t threads) {
  rl_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) return NULL;
  make(&pool->lock, &pool->work);
  make(&pool->lock, &pool->done);
  pool->alone.size = 1;
  pool->thread = calloc(threads, sizeof *pool->thread);
  pool->arena = calloc(threads, sizeof *pool->arena);
  pool->experience = calloc(2 * ROWS_A_THREAD * (size_t)threads, sizeof *pool->experience);
  pool->threads = 1;
  for (int i = 1; pool->thread != NULL && pool->arena != NULL && i < threads; i++) {
    worker *own = malloc(sizeof *own);
    if (own == NULL) break;
    *own = (worker){pool, i};
    if (begin(&pool->thread[i], work_on, own) != 0) {
      free(own);
      break;
    }
    pool->threads = i + 1;
  }
  pool->team.size = pool->threads;
  if (pool->threads == threads && pool->arena != NULL && pool->experience != NULL) return pool;
  rl_pool_free(pool);
  return NULL;
}

void rl_pool_free(rl_pool *pool) {
  if (pool == NULL) return;
  LOCK(&pool->lock);
  pool->closing = 1;
  WAKE(&pool->work);
  UNLOCK(&pool->lock);
  for (int i = 1; i < pool->threads; i++) join(pool->thread[i]);
  for (int i = 0; pool->arena != NULL && i < pool->threads; i++) free(pool->arena[i].whole);
  free(pool->arena), free(pool->experience), free(pool->thread), free(pool);
}

/* ---- a window ------------------------------------------------------------------------------------------- */

/* Rows of one batch at most: more would leave the caches. */
#define ROWS_AT_ONCE 32
/* Between these, padding of the vocabulary stays impossible, and no logit overflows. */
#define COLDEST 1e-12f
#define HOTTEST 1e12f

static int valid(const rl_model *model, int32_t rows, const rl_row *row, float temperature) {
  if (rows < 1 || !(temperature >= COLDEST && temperature <= HOTTEST)) return 0;
  for (int i = 0; i < rows; i++) {
    const rl_row *r = &row[i];
    const int learns = r->targets != NULL;
    if (r->length < 1 || (i > 0 && r->length > row[i - 1].length)) return 0;
    if ((r->delta != NULL || learns) && model->fast_weights == 0) return 0;
    if (learns && (r->loss == NULL || r->length != row[0].length || model->components > 1)) return 0;
    if (learns && i > 0 && row[i - 1].targets == NULL) return 0;
    for (int t = 0; t < r->length; t++) {
      if (r->ids[t] < 0 || r->ids[t] >= model->vocab) return 0;
      if (learns && (r->targets[t] < 0 || r->targets[t] >= model->vocab)) return 0;
    }
  }
  return 1;
}

static void run(rl_pool *pool) {
  if (pool->threads > 1) {
    atomic_store(&pool->left, pool->threads - 1);
    LOCK(&pool->lock);
    atomic_fetch_add(&pool->number, 1);
    WAKE(&pool->work);
    UNLOCK(&pool->lock);
  }
  take_part(pool, 0);
  if (pool->threads == 1) return;
  for (int spins = 0; spins < SPINS * 4 && atomic_load(&pool->left) > 0; spins++) pause_();
  LOCK(&pool->lock);
  while (atomic_load(&pool->left) > 0) WAIT(&pool->done, &pool->lock);
  UNLOCK(&pool->lock);
}

void rl_recall_all(rl_pool *pool, int32_t count, rl_recall *recall) {
  if (pool == NULL || count == 1) {
    for (int32_t i = 0; i < count; i++) rl_recall_one(&recall[i]);
    return;
  }
  window *w = &pool->window;
  w->recall = recall, w->count = count, w->together = 0;
  atomic_store(&w->begun, 0);
  run(pool);
  w->recall = NULL;
}

/* Multiply-adds below which threads together are no faster than one. */
#define LITTLE 8000000

static int64_t multiply_adds(const rl_model *model, int32_t rows, const rl_row *row) {
  int64_t weights = (int64_t)model->output.shared.n * model->output.shared.m, tokens = 0;
  for (int i = 0; i < model->layers; i++) {
    const rl_matrix *x = &model->layer[i].x.shared, *h = &model->layer[i].h.shared;
    weights += (int64_t)x->n * x->m + (int64_t)h->n * h->m;
  }
  for (int i = 0; i < rows; i++) tokens += row[i].length;
  return weights * tokens;
}

/* On a core that others use a thread may be away for milliseconds while the rest wait at each barrier. So the time that
 * windows take says whether all threads read the next one. After some windows the slower way is tried again, until it is
 * the faster or one window of it is slow; after that for twice as many not. */
#define LEAST_KEPT 16
#define MOST_KEPT 1024

static int all_are_faster(const experience *e) { return e->pace[1] <= e->pace[0]; }

static int all_read(const experience *e) {
  if (e->pace[1] == 0.0 || e->pace[0] == 0.0) return e->pace[1] == 0.0;
  return (e->left > 0) == all_are_faster(e);
}

static void remember(experience *e, int together, double pace) {
  const int before = all_are_faster(e), slower = pace > e->pace[!together];
  double *known = &e->pace[together];
  *known = *known == 0.0 ? pace : *known + 0.25 * (pace - *known);
  if (e->kept == 0 || all_are_faster(e) != before)
    e->left = e->kept = LEAST_KEPT;
  else if (e->left > 0)
    e->left--;
  else if (slower)
    e->left = e->kept = 2 * e->kept < MOST_KEPT ? 2 * e->kept : MOST_KEPT;
}

/* Into how many batches rows are cut, so that all threads have as many. */
static int32_t batches_of(const rl_pool *pool, int32_t rows) {
  const int32_t count = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, threads = pool->threads;
  return rows < threads ? count : (count + threads - 1) / threads * threads;
}

int32_t rl_window(rl_pool *pool, const rl_model *model, int32_t rows, const rl_row *row, float temperature) {
  if (!valid(model, rows, row, temperature)) return -2;
  const int few = pool->threads > 1 && rows < ROWS_A_THREAD * pool->threads;
  const int64_t work = multiply_adds(model, rows, row);
  const int split = few && work >= LITTLE;
  int32_t learners = 0;
  while (learners < rows && row[learners].targets != NULL) learners++;
  experience *known = split ? &pool->experience[(learners > 0) * ROWS_A_THREAD * pool->threads + rows] : NULL;
  const int together = split && all_read(known);
  const double begun = nanoseconds();
  const int32_t least = ROWS_AT_ONCE * pool->threads;
  if (few || learners < least || rows - learners < least) learners = 0; /* all of them alike */
  const int32_t learning = batches_of(pool, learners);
  const int32_t count = few ? 1 : learning + batches_of(pool, rows - learners);
  window *w = &pool->window;
  w->batch = calloc(count, sizeof *w->batch);
  w->row = calloc(rows, sizeof *w->row);
  w->count = count, w->together = together;
  atomic_store(&w->begun, 0);
  atomic_store(&pool->failed, w->batch == NULL || w->row == NULL);
  if (!atomic_load(&pool->failed)) {
    for (int i = 0, at = 0; i < count; i++) { /* every batch gets rows of all lengths */
      const int first = at, end = i < learning ? learners : rows;
      for (int r = i < learning ? i : learners + i - learning; r < end; r += i < learning ? learning : count - learning)
        w->row[at++] = &row[r];
      w->batch[i] = (rl_batch){.model = model, .rows = at - first, .row = w->row + first, .temperature = temperature,
                               .arena = &pool->arena[0], .team = together ? &pool->team : &pool->alone};
    }
    if (together && !prepare(w->batch))
      atomic_store(&pool->failed, 1);
    else if (count == 1 && !together)
      take_part(pool, 0);
    else
      run(pool);
    if (split) remember(known, together, (nanoseconds() - begun) / (double)work);
  }
  free(w->batch), free(w->row);
  return atomic_load(&pool->failed) ? -1 : 0;
}

/* ---- the mixture ---------------------------------------------------------------------------------------- */

#define MOST_EXPERTS 64

int32_t rl_mix(int32_t experts, int32_t vocab, int64_t stride, const float *const *log_probs, int32_t length,
               const int32_t *targets, double *weights, int64_t *tokens, double *logprobs, int32_t *ranks,
               float *entropies, float *mixed, uint8_t *broken) {
  if (experts < 1 || experts > MOST_EXPERTS || vocab > stride || stride % RL_LANES != 0) return -1;
  for (int32_t t = 0; t < length; t++)
    if (targets[t] < 0 || targets[t] >= vocab) return -1;
  for (int32_t t = 0; t < length; t++) {
    const float *row[MOST_EXPERTS];
    float each[MOST_EXPERTS];
    double speaking[MOST_EXPERTS], usable = 0.0, best = -__builtin_inf(), total = 0.0, likelihood[MOST_EXPERTS];
    int heard = 0;
    for (int k = 0; k < experts; k++) {
      row[k] = log_probs[k] + t * stride;
      const float value = row[k][targets[t]];
      const int good = value < __builtin_inff();
      if (!good) broken[k] = 1;
      each[k] = value;
      heard += good;
      speaking[k] = good ? weights[k] : 0.0;
      usable += speaking[k];
      if (good && value > best) best = value;
    }
    if (heard == 0) return t;
    for (int k = 0; k < experts; k++) {
      const int good = each[k] < __builtin_inff();
      likelihood[k] = !good ? 0.0 : best == -__builtin_inf() ? 1.0 : exp_d((double)each[k] - best);
      total += weights[k] * likelihood[k];
    }
    logprobs[t] = best + log_d(heard < experts ? total / usable : total);
    if (ranks != NULL) {
      float heed[MOST_EXPERTS];
      for (int k = 0; k < experts; k++) heed[k] = (float)(heard < experts ? speaking[k] / usable : speaking[k]);
      const rl_token token = {experts, vocab, targets[t], row, heed};
      chosen()->kernels.distribution(&token, &ranks[t], &entropies[t], mixed == NULL ? NULL : mixed + t * stride);
    }
    const double given = 1.0 / ((double)*tokens + 2.0), kept = 1.0 - given;
    for (int k = 0; k < experts; k++) weights[k] = weights[k] * likelihood[k] / total * kept + given / experts;
    ++*tokens;
  }
  return length;
}

/* ---- packing -------------------------------------------------------------------------------------------- */

void rl_pack(const float *matrix, const float *delta, int32_t n, int32_t m, int32_t blocks, float *forward,
             float *backward) {
  const int64_t rows = n / blocks, depth = (m + RL_LANES - 1) / RL_LANES * RL_LANES;
  const int64_t height = blocks * ((rows + RL_LANES - 1) / RL_LANES * RL_LANES);
  for (int64_t i = 0; i < n; i++) {
    const int64_t row = i / rows * (height / blocks) + i % rows;
    float *ahead = forward + row / RL_LANES * depth * RL_LANES + row % RL_LANES, *back = backward + row * RL_LANES;
    for (int64_t j = 0; j < m; j++) {
      const float value = matrix[i * m + j] + (delta == NULL ? 0.0f : delta[i * m + j]);
      ahead[j * RL_LANES] = value;
      back[j / RL_LANES * height * RL_LANES + j % RL_LANES] = value;
    }
  }
}
