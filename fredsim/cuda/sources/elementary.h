// exp and log of float32: the expressions of the functions of the same names in fredsim.numerics.elementary, in double,
// rounded once. constants.h is made from the constants there.
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
