// exp, log, sin, tanh and erfc: the expressions of the functions of the same names in fredsim.numerics.elementary, in double;
// those of float32 are rounded once. constants.h is made from the constants there.
#include "constants.h"

DEVICE float exp32(float x) {
  const bool inside = x >= EXP32_LOW && x <= EXP32_HIGH;
  const double y = inside ? (double)x : 0.0;
  const i64 k = (i64)(y * INVERSE_LN2 + (y < 0.0 ? -0.5 : 0.5));
  const double above = y - (double)k * LN2_HIGH, below = (double)k * LN2_LOW, r = above - below, t = r * r;
  const double c = r - t * (EXP1 + t * (EXP2 + t * (EXP3 + t * (EXP4 + t * EXP5))));
  double value = 1.0 - ((below - (r * c) / (2.0 - c)) - above);
  value = value * double_of((k + 1023) << 52);
  return inside ? (float)value : x < EXP32_LOW ? 0.0f : x > EXP32_HIGH ? INFINITE : NOT_A_NUMBER;
}

DEVICE float log32(float x) {
  const bool inside = x > 0.0f && x < INFINITE;
  const i64 bits = bits_of((double)(inside ? x : 1.0f));  // a subnormal float32 is normal here
  double m = double_of((bits & MANTISSA) | ONE_BITS);
  const bool upper = m > SQRT2;
  m = upper ? 0.5 * m : m;
  const double k = (double)((bits >> 52) - 1023 + (upper ? 1 : 0)), f = m - 1.0, s = f / (2.0 + f), z = s * s;
  const double r = z * (LOG1 + z * (LOG2 + z * (LOG3 + z * (LOG4 + z * (LOG5 + z * (LOG6 + z * LOG7))))));
  const double h = 0.5 * f * f;
  const float value = (float)(k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f));
  return inside ? value : x == 0.0f ? -INFINITE : x == INFINITE ? INFINITE : NOT_A_NUMBER;
}

DEVICE double exp64(double x) {
  const bool inside = x >= EXP64_LOW && x <= EXP64_HIGH;
  const double y = inside ? x : 0.0;
  const i64 k = (i64)(y * INVERSE_LN2 + (y < 0.0 ? -0.5 : 0.5)), half = k >> 1;
  const double above = y - (double)k * LN2_HIGH, below = (double)k * LN2_LOW, r = above - below, t = r * r;
  const double c = r - t * (EXP1 + t * (EXP2 + t * (EXP3 + t * (EXP4 + t * EXP5))));
  double value = 1.0 - ((below - (r * c) / (2.0 - c)) - above);
  value = value * double_of((half + 1023) << 52) * double_of((k - half + 1023) << 52);
  return inside ? value : x < EXP64_LOW ? 0.0 : x > EXP64_HIGH ? (double)INFINITE : (double)NOT_A_NUMBER;
}

DEVICE double log64(double x) {
  const bool inside = x > 0.0 && x < (double)INFINITE;
  const double y = inside ? x : 1.0;
  const bool tiny = y < 0x1p-1022;  // a subnormal is scaled into the normal range
  const i64 bits = bits_of(y * (tiny ? 0x1p54 : 1.0));
  double m = double_of((bits & MANTISSA) | ONE_BITS);
  const bool upper = m > SQRT2;
  m = upper ? 0.5 * m : m;
  const double k = (double)((bits >> 52) - 1023 - (tiny ? 54 : 0) + (upper ? 1 : 0));
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  const double r = z * (LOG1 + z * (LOG2 + z * (LOG3 + z * (LOG4 + z * (LOG5 + z * (LOG6 + z * LOG7))))));
  const double h = 0.5 * f * f, value = k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f);
  return inside ? value : x == 0.0 ? -(double)INFINITE : x > 0.0 ? (double)INFINITE : (double)NOT_A_NUMBER;
}

DEVICE double log1p64(double x) {
  return fabs(x) < LOG1P_SMALL ? x * (1.0 - x * (0.5 - x * THIRD)) : log64(1.0 + x);
}

DEVICE double sine64(double x, int quarters) {  // sin(x + quarters * pi / 2)
  const double parts[] = {TWO_BY_PI_PARTS}, size = fabs(x);
  double k = trunc(x * TWO_BY_PI + (x < 0.0 ? -0.5 : 0.5)), r = (x - k * HALF_PI_HIGH) - k * HALF_PI_LOW;
  if (size >= TURNED_OFTEN) {
    double turns = 0.0, rest = 0.0;
    UNROLL for (int i = 0; i < 7; i++) {
      const double y = size * parts[i], t = rest + (y - 4.0 * trunc(0.25 * y)), n = trunc(t + 0.5);
      turns = turns + n;
      rest = t - n;
    }
    const double far = rest * HALF_PI;
    k = x < 0.0 ? -turns : turns;
    r = x < 0.0 ? -far : far;
  }
  k = k + ((double)quarters + TURNED_OFTEN);  // above 0, and a whole number of turns more
  k = k - 4.0 * trunc(0.25 * k);
  const double z = r * r;
  const double sine = r * (1.0 + z * (SIN1 + z * (SIN2 + z * (SIN3 + z * (SIN4 + z * (SIN5 + z * SIN6))))));
  const double cosine = 1.0 - (0.5 * z - z * (z * (COS1 + z * (COS2 + z * (COS3 + z * (COS4 + z * (COS5 + z * COS6)))))));
  return k == 0.0 ? sine : k == 1.0 ? cosine : k == 2.0 ? -sine : -cosine;
}

DEVICE double tanh64(double x) {
  const double square = x * x, small = x * (1.0 - square * (THIRD - square * TWO_FIFTEENTHS));
  const double large = 1.0 - 2.0 / (exp64(2.0 * fabs(x)) + 1.0);
  return fabs(x) < 0x1p-9 ? small : x < 0.0 ? -large : large;
}

DEVICE double sigmoid64(double x) {
  const double e = exp64(-fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

DEVICE double erfc64(double x) {
  const double erf_series[] = {ERF_SERIES}, polynomial[] = {ERFC_POLYNOMIAL};
  const double size = fabs(x), inner = size < 1.0 ? x : 0.0, square = inner * inner;
  double series = erf_series[14];
  UNROLL for (int i = 13; i >= 0; i--) series = erf_series[i] + square * series;
  series = inner * series * TWO_BY_ROOT_PI;
  const double far = size < 12.0 ? size < 1.0 ? 1.0 : size : 12.0, t = 1.0 / (1.0 + 0.5 * far);
  double value = polynomial[12];
  UNROLL for (int i = 11; i >= 0; i--) value = polynomial[i] + t * value;
  const double outer = t * value * exp64(-(far * far));
  value = size < 1.0 ? 1.0 - series : x < 0.0 ? 2.0 - outer : outer;
  return x != x ? x : value;
}
