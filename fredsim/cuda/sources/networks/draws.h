// Which elements dropout leaves: fredsim.numerics.ops.draws. The draws depend on whose gradient it is, and are made again
// in the backward pass instead of being kept.
#include "philox.h"

struct Drawn {
  const int* clients;  // (B,): whose gradients they are; null: nothing is dropped
  const int* numbers;  // (B,): which of the client's
  double p;
  i64 each;            // elements of a sample
  float scale;         // 1/(1 − p)
  int seed;
  int stream;
  int place;           // which of the network's drawing operators it is
};

// Return x·scale if element i of the minibatch stays, else +0; x where nothing is dropped.
DEVICE float dropped(const Drawn& p, i64 i, float x) {
  if (!p.clients) return x;
  const i64 own = i % p.each, blocks = (p.each + 3) / 4;
  const u32 counter[4] = {(u32)(i / p.each * blocks + own / 4), (u32)p.numbers[blockIdx.z], (u32)p.clients[blockIdx.z],
                          (u32)p.place};
  const double u = (double)(random_word(counter, p.seed, p.stream, own % 4) >> 8) * 0x1p-24;
  return u >= p.p ? x * p.scale : 0.0f;
}
