// Functions of each element, sums, products, extremes and choices of two inputs, of B minibatches.
//
// An activation is computed in double and rounded once, and so is its derivative, by which the error is multiplied in
// float; relu, leaky_relu, hardtanh, abs, exp, log, sqrt, rsqrt, reciprocal, tanh, sigmoid, scale and shift need float
// alone for the latter. Where one of two inputs was repeated along axes, its error is the sum over them in row-major order from +0.
#include "common.h"
#include "elementary.h"

struct Pointwise {
  const float* x;       // (B, size)
  const float* errors;  // (B, size), of the output; null in the forward pass
  float* out;           // (B, size)
  i64 size;
  float by;
  float high;  // the higher of two numbers that a function takes; of HARDTANH those between which errors pass
  int operation;
};

#include "functions.h"

DEVICE double gelu_inner(double x) { return ROOT_2_BY_PI * (x + GELU_CUBIC * (x * x * x)); }

DEVICE float root(float x) { return 1.0f / sqrtf(x); }

DEVICE double softplus64(double x) {
  const double e = exp64(-fabs(x)), s = e / (2.0 + e), z = s * s;
  double series = 1.0 / 23.0;
  for (int n = 10; n >= 0; n--) series = 1.0 / (2 * n + 1) + z * series;
  return (x < 0.0 ? 0.0 : x) + 2.0 * s * series;
}

DEVICE double mish_share(double x) {  // tanh(log(1 + exp(x)))
  const double e = exp64(-fabs(x)), below = e * (e + 2.0), above = 1.0 + 2.0 * e;
  return x < 0.0 ? below / (below + 2.0) : above / (above + 2.0 * (e * e));
}

DEVICE float value_of(int operation, float x, float by, float high) {
  const double wide = x;
  switch (operation) {
    case LEAKY_RELU: return x > 0.0f ? x : x * by;
    case SCALE: return x * by;
    case SHIFT: return x + by;
    case TANH: return (float)tanh64(wide);
    case SIGMOID: return (float)sigmoid64(wide);
    case SILU: return (float)(wide * sigmoid64(wide));
    case ELU: {
      const double below = wide > -ELU_SMALL ? wide * (1.0 + 0.5 * wide) : exp64(wide) - 1.0;
      return (float)(wide > 0.0 ? wide : (double)by * below);
    }
    case HARDTANH: return x <= by ? by : x >= high ? high : x;
    case HARDSIGMOID: return (float)(wide <= -3.0 ? 0.0 : wide >= 3.0 ? 1.0 : (wide + 3.0) / 6.0);
    case HARDSWISH: return (float)(wide <= -3.0 ? 0.0 : wide >= 3.0 ? wide : wide * (wide + 3.0) / 6.0);
    case RSQRT: return root(x);
    case ABS: return fabsf(x);
    case EXP: return exp32(x);
    case LOG: return log32(x);
    case LOG1P: return (float)log1p64(wide);
    case SIN: return (float)sine64(wide, 0);
    case COS: return (float)sine64(wide, 1);
    case SQRT:
    case FLAT_SQRT: return sqrtf(x);
    case RECIPROCAL: return 1.0f / x;
    case SOFTPLUS: return (float)softplus64(wide);
    case MISH: return (float)(wide * mish_share(wide));
    case GELU: return (float)(wide * (0.5 * erfc64(-wide * ROOT_HALF)));
    case GELU_TANH: return (float)(wide * (0.5 * (1.0 + tanh64(gelu_inner(wide)))));
  }
  return x;
}

DEVICE float slope_of(int operation, float x, float by) {
  const double wide = x;
  switch (operation) {
    case LEAKY_RELU: return x > 0.0f ? 1.0f : by;
    case SCALE: return by;
    case TANH: {
      const float y = (float)tanh64(wide);
      return 1.0f - y * y;
    }
    case SIGMOID: {
      const float y = (float)sigmoid64(wide);
      return y * (1.0f - y);
    }
    case SILU: {
      const double s = sigmoid64(wide);
      return (float)(s * (1.0 + wide * (1.0 - s)));
    }
    case ELU: return (float)(wide > 0.0 ? 1.0 : (double)by * exp64(wide));
    case HARDSIGMOID: return x <= -3.0f || x >= 3.0f ? 0.0f : (float)(1.0 / 6.0);
    case HARDSWISH: return (float)(wide < -3.0 ? 0.0 : wide > 3.0 ? 1.0 : wide / 3.0 + 0.5);
    case RSQRT: {
      const float r = root(x);
      return r * r * r * -0.5f;
    }
    case ABS: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
    case EXP: return exp32(x);
    case LOG: return 1.0f / x;
    case LOG1P: return (float)(1.0 / (1.0 + wide));
    case SIN: return (float)sine64(wide, 1);
    case COS: return (float)sine64(wide, 2);
    case SQRT: return 0.5f / sqrtf(x);
    case FLAT_SQRT: return x == 0.0f ? 0.0f : 0.5f / sqrtf(x);
    case RECIPROCAL: {
      const float y = 1.0f / x;
      return -(y * y);
    }
    case SOFTPLUS: return (float)sigmoid64(wide);
    case MISH: {
      const double t = mish_share(wide);
      return (float)(t + wide * (sigmoid64(wide) * (1.0 - t * t)));
    }
    case GELU: {
      const double density = ROOT_1_BY_2PI * exp64(-0.5 * (wide * wide));
      return (float)(0.5 * erfc64(-wide * ROOT_HALF) + wide * density);
    }
    case GELU_TANH: {
      const double t = tanh64(gelu_inner(wide)), rate = ROOT_2_BY_PI * (1.0 + GELU_CUBIC_3 * (wide * wide));
      return (float)(0.5 * (1.0 + t) + 0.5 * wide * (1.0 - t * t) * rate);
    }
  }
  return 1.0f;
}

KERNEL(apply_function, Pointwise, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x, at = blockIdx.z * p.size + i;
  if (i >= p.size) return;
  const float x = p.x[at];
  if (!p.errors) p.out[at] = value_of(p.operation, x, p.by, p.high);
  else if (p.operation == HARDTANH) p.out[at] = x <= p.by || x >= p.high ? 0.0f : p.errors[at];
  else p.out[at] = p.errors[at] * slope_of(p.operation, x, p.by);
}

KERNEL(rectify, Pointwise, 128, 0) {  // RELU, four elements a thread
  const i64 i = 4 * (blockIdx.x * (i64)128 + threadIdx.x), at = blockIdx.z * p.size + i;
  if (i >= p.size) return;
  const int count = (int)smaller((i64)4, p.size - i);
  const bool whole = p.size % 4 == 0;
  alignas(16) float x[4], out[4];
  read_four(x, p.x + at, count, whole);
  read_four(out, (p.errors ? p.errors : p.x) + at, count, whole);
  UNROLL for (int c = 0; c < 4; c++) out[c] = x[c] > 0.0f ? out[c] : 0.0f;  // an infinite error of a dead unit is +0
  write_four(p.out + at, out, count, whole);
}

DEVICE float combined(int operation, float a, float b) {
  switch (operation) {
    case PRODUCT: return a * b;
    case LARGER: return a > b || a != a ? a : b;
    case SMALLER: return a < b || a != a ? a : b;
    case SHARE_OF_LARGER: return a < b ? 0.0f : a == b ? 0.5f : 1.0f;  // by which the error of a is multiplied
    case SHARE_OF_SMALLER: return a > b ? 0.0f : a == b ? 0.5f : 1.0f;
    case KEPT: return b > 0.0f ? a : 0.0f;
  }
  return a + b;
}

#define AXES 8
struct Both {
  const float* a;  // of each minibatch, with the strides below
  const float* b;
  float* out;      // (B, size) in C order
  i64 a_size;      // of a minibatch
  i64 b_size;
  i64 size;
  i64 a_stride[AXES];    // along each axis of the output; 0 where it is repeated
  i64 b_stride[AXES];
  i64 shape[AXES];       // of the output; the last axis last
  i64 repeats[AXES];     // the axes along which the result is summed, in row-major order; 1 along the others
  i64 a_step[AXES];
  i64 b_step[AXES];
  int operation;         // one of Combination; without b, a alone
};

KERNEL(combine, Both, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.size) return;
  i64 left = i, of_a = blockIdx.z * p.a_size, of_b = blockIdx.z * p.b_size, count = 1;
  UNROLL for (int axis = AXES - 1; axis >= 0; axis--) {
    if (p.shape[axis] > 1) {
      of_a += left % p.shape[axis] * p.a_stride[axis];
      of_b += left % p.shape[axis] * p.b_stride[axis];
      left /= p.shape[axis];
    }
    count *= p.repeats[axis];
  }
  auto result = [&](i64 at_a, i64 at_b) {
    return !p.b ? p.a[at_a] : combined(p.operation, p.a[at_a], p.b[at_b]);
  };
  float total = 0.0f;
  if (count == 1) total = result(of_a, of_b);
  else
    for (i64 n = 0; n < count; n++) {
      i64 rest = n, at_a = of_a, at_b = of_b;
      UNROLL for (int axis = AXES - 1; axis >= 0; axis--)
        if (p.repeats[axis] > 1) {
          at_a += rest % p.repeats[axis] * p.a_step[axis];
          at_b += rest % p.repeats[axis] * p.b_step[axis];
          rest /= p.repeats[axis];
        }
      total = total + result(at_a, at_b);
    }
  p.out[blockIdx.z * p.size + i] = total;
}

struct Alike {  // two values of one shape
  const float* a;  // (B, size)
  const float* b;
  float* out;
  i64 size;
  int operation;  // one of Combination
};

KERNEL(combine_alike, Alike, 128, 0) {  // four elements a thread
  const i64 i = 4 * (blockIdx.x * (i64)128 + threadIdx.x), at = blockIdx.z * p.size + i;
  if (i >= p.size) return;
  const int count = (int)smaller((i64)4, p.size - i);
  const bool whole = p.size % 4 == 0;
  alignas(16) float a[4], b[4];
  read_four(a, p.a + at, count, whole);
  read_four(b, p.b + at, count, whole);
  UNROLL for (int c = 0; c < 4; c++) a[c] = combined(p.operation, a[c], b[c]);
  write_four(p.out + at, a, count, whole);
}
