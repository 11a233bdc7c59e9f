// Ternary gradients, two bits a value: fredsim.numerics.ternary. There are no sums here.
#include "common.h"
#include "philox.h"

struct Encode {
  const float* g;       // (n,)
  const float* scaler;  // (1,)
  u8* packed;           // (⌈n ÷ 4⌉,)
  i64 n;
  int seed;             // the words of Philox's key
  int stream;
  int begin;            // the element of the stream that g[0] takes; then the words of the counter
  int step;
  int client;
};

// sign(g)·b with b = 1 iff u·s < |g| in double, u = (word >> 8)·2⁻²⁴. Codes: 00 is −1, 01 is 0, 10 is +1.
KERNEL(encode, Encode, 128, 0) {
  const i64 byte = blockIdx.x * (i64)128 + threadIdx.x;
  if (4 * byte >= p.n) return;
  int packed = 0;
  UNROLL for (int slot = 0; slot < 4; slot++) {
    const i64 i = 4 * byte + slot;
    int code = 1;
    if (i < p.n) {
      const u32 element = (u32)(p.begin + i), counter[4] = {element >> 2, (u32)p.step, (u32)p.client, 0};
      const u32 word = random_word(counter, p.seed, p.stream, element & 3);
      const double u = (double)(word >> 8) * 0x1p-24;
      const float x = p.g[i];
      if (u * (double)p.scaler[0] < (double)fabsf(x)) code = x > 0.0f ? 2 : x < 0.0f ? 0 : 1;
    }
    packed |= code << (2 * slot);
  }
  p.packed[byte] = (u8)packed;
}

struct Decode {
  const u8* packed;
  const float* scaler;  // (1,)
  float* out;           // (n,): the scaler times each value
  i64 n;
};

KERNEL(decode, Decode, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.n) p.out[i] = p.scaler[0] * (float)((p.packed[i / 4] >> (2 * (i % 4)) & 3) - 1);
}
