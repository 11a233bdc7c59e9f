// Elementwise functions of arrays of float32 and bool, and copies. There are no sums here; each operation is rounded
// once, as NumPy rounds it.
#include "common.h"

#define OPERANDS 3
#define DIMENSIONS 4
struct Elementwise {
  const void* operand[OPERANDS];  // null: the number below
  i64 stride[OPERANDS * DIMENSIONS];  // in elements, the last dimension last; 0 along a dimension that is repeated
  i64 out_stride[DIMENSIONS];
  i64 shape[DIMENSIONS];
  void* out;
  i64 size;
  int is_bool[OPERANDS];
  float number[OPERANDS];
  int out_is_bool;
  int operation;
};

enum Operation {
  COPY, NEGATIVE, ABSOLUTE, ROOT, ADD, SUBTRACT, MULTIPLY, DIVIDE, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL,
  NOT_EQUAL, WHERE
};

DEVICE float result(int operation, float x, float y, float z) {
  switch (operation) {
    case NEGATIVE: return -x;
    case ABSOLUTE: return fabsf(x);
    case ROOT: return sqrtf(x);
    case ADD: return x + y;
    case SUBTRACT: return x - y;
    case MULTIPLY: return x * y;
    case DIVIDE: return x / y;
    case LESS: return x < y;
    case LESS_EQUAL: return x <= y;
    case GREATER: return x > y;
    case GREATER_EQUAL: return x >= y;
    case EQUAL: return x == y;
    case NOT_EQUAL: return x != y;
    case WHERE: return x != 0.0f ? y : z;
  }
  return x;
}

KERNEL(elementwise, Elementwise, 128, 0) {
  i64 left = blockIdx.x * (i64)128 + threadIdx.x;
  if (left >= p.size) return;
  i64 at[OPERANDS] = {0, 0, 0}, out = 0;
  UNROLL for (int d = DIMENSIONS - 1; d >= 0; d--) {
    const i64 i = p.shape[d] == 1 ? 0 : d ? left % p.shape[d] : left;
    left = p.shape[d] == 1 ? left : left / p.shape[d];
    UNROLL for (int n = 0; n < OPERANDS; n++) at[n] += i * p.stride[n * DIMENSIONS + d];
    out += i * p.out_stride[d];
  }
  float value[OPERANDS];
  UNROLL for (int n = 0; n < OPERANDS; n++)
    value[n] = !p.operand[n]  ? p.number[n]
               : p.is_bool[n] ? (float)((const u8*)p.operand[n])[at[n]]
                              : ((const float*)p.operand[n])[at[n]];
  const float found = result(p.operation, value[0], value[1], value[2]);
  if (p.out_is_bool) ((u8*)p.out)[out] = found != 0.0f;
  else ((float*)p.out)[out] = found;
}
