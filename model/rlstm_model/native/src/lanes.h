/* Vectors of one instruction set, and functions of them. The same values come out whatever the width. */
#ifndef RL_LANES_H
#define RL_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDTH 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define WIDTH 8
#else
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define WIDTH 4
#endif

#define LANES 16
#define PARTS (LANES / WIDTH)
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4)));

INLINE vec load(const float *p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

INLINE vec all(float x) { return x - (vec){0}; }

/* a b + c, rounded once where the machine can. */
INLINE vec fma_(vec a, vec b, vec c) {
#if WIDTH == 16
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WIDTH == 8
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

/* WIDTH half-precision values. */
INLINE vec load_half(const uint16_t *p) {
#if WIDTH == 16
  return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif WIDTH == 8
  return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
  return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  /* Exponent and fraction moved into place, then scaled by 2^112: exact, subnormal numbers too. */
  ivec bits = {p[0], p[1], p[2], p[3]};
  ivec sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
  vec value = (vec)rest * all(0x1p112f);
  return (vec)((ivec)value | sign);
#endif
}

/* The nearest half-precision value, ties to even. */
INLINE uint16_t to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) { /* subnormal: a sum with 0.5 rounds it into the last bits */
    float value;
    memcpy(&value, &bits, 4);
    value += 0.5f;
    memcpy(&bits, &value, 4);
    return (uint16_t)(sign | (bits - 0x3f000000));
  }
  bits += 0xfff + (bits >> 13 & 1);
  return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

/* WIDTH values that half precision holds, to the nearest. */
INLINE void store_half(uint16_t *p, vec v) {
#if WIDTH == 16
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif WIDTH == 8
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  for (int i = 0; i < WIDTH; i++) p[i] = to_half(v[i]);
#endif
}

INLINE vec select_(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }

INLINE vec min_(vec a, vec b) { return select_(a < b, a, b); }

/* e^x to 1e-7 of itself; below -87 it is 1e-38, above 88 it is 1e38; NaN stays. */
INLINE vec exp_(vec x) {
  const float round_ = 12582912.0f; /* 1.5 2^23: adding it leaves a whole number */
  x = select_(x < all(-87.0f), all(-87.0f), x);
  x = select_(x > all(88.0f), all(88.0f), x);
  vec n = fma_(x, all(1.44269504f), all(round_)) - round_;
  vec r = fma_(n, all(-0.693145752f), x); /* ln 2 in two parts, the first of few digits */
  r = fma_(n, all(-1.42860677e-6f), r);
  vec p = fma_(all(1.381453825e-3f), r, all(8.368745446e-3f));
  p = fma_(p, r, all(4.166838899e-2f));
  p = fma_(p, r, all(1.666652113e-1f));
  p = fma_(p, r, all(0.5f));
  p = fma_(p * r, r, r) + 1.0f;
  ivec whole = __builtin_convertvector(select_(n == n, n, all(0.0f)), ivec);
  return p * (vec)((whole + 127) << 23);
}

/* The natural logarithm of positive normal numbers, to 1e-7. */
INLINE vec log_(vec x) {
  ivec bits = (ivec)x, e = ((bits >> 23) & 0xff) - 127;
  vec m = (vec)((bits & 0x7fffff) | 0x3f800000);
  const ivec high = m > all(1.41421356f);
  m = select_(high, m * 0.5f, m);
  e = e - high; /* a true comparison is -1 */
  const vec s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  vec p = fma_(all(2.0f / 9.0f), s2, all(2.0f / 7.0f));
  p = fma_(p, s2, all(2.0f / 5.0f));
  p = fma_(p, s2, all(2.0f / 3.0f));
  p = fma_(p * s2, s, s + s);
  return fma_(__builtin_convertvector(e, vec), all(0.693147181f), p);
}

INLINE vec sigmoid_(vec x) { return 1.0f / (1.0f + exp_(-x)); }

/* To 2e-7 of itself: near zero an odd polynomial (fitted by least squares at Chebyshev points), since 1 - 2 / (1 + e^2x)
 * cancels there. */
INLINE vec tanh_(vec x) {
  const vec x2 = x * x, far = 1.0f - 2.0f / (1.0f + exp_(x + x));
  vec p = fma_(all(-5.88074466e-3f), x2, all(2.08065882e-2f));
  p = fma_(p, x2, all(-5.37947677e-2f));
  p = fma_(p, x2, all(1.33321553e-1f));
  p = fma_(p, x2, all(-3.33333105e-1f));
  return select_(x2 < all(0.390625f), fma_(p * x2, x, x), far);
}

/* The sum of LANES values, always as the same tree. */
INLINE float tree(const float lane[LANES]) {
  float half[8], quarter[4];
  for (int i = 0; i < 8; i++) half[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; i++) quarter[i] = half[i] + half[i + 4];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* Scalar functions in double precision, without the C library's, which differ between machines. */
INLINE double log_d(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -__builtin_inf() : __builtin_nan("");
  if (x > 1.7976931348623157e308) return x;
  int64_t bits;
  int extra = 0;
  if (x < 2.2250738585072014e-308) x *= 0x1p54, extra = -54;
  memcpy(&bits, &x, 8);
  int e = (int)((bits >> 52) & 0x7ff) - 1023;
  bits = (bits & 0xfffffffffffffLL) | 0x3ff0000000000000LL;
  double m;
  memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) m *= 0.5, e++;
  double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return (e + extra) * 0.6931471805599453 + 2.0 * s * sum;
}

INLINE double exp_d(double x) {
  if (x != x) return x;
  if (x < -745.0) return 0.0;
  if (x > 709.0) return __builtin_inf();
  double n = (double)(int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
  double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double sum = 1.0;
  for (int k = 14; k >= 1; k--) sum = 1.0 + sum * r / k;
  int e = (int)n;
  double scale = 1.0;
  if (e < -1000) scale = 0x1p-100, e += 100;
  int64_t bits = (int64_t)(e + 1023) << 52;
  double power;
  memcpy(&power, &bits, 8);
  return sum * power * scale;
}

#endif
