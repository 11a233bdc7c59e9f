// Tiles of sums of products, shared by the operators of networks.
//
// The order of sums: out[m, n] = Σ_k left[m, k]·right[k, n], k ascending from +0. A thread holds TM × TN of the sums in
// registers; no sum is divided between threads. Terms beyond the last are 0·0, which change no sum: one that begins at
// +0 is never −0.
//
// What the factors are, and where a sum goes, says a class `Terms`:
//   float left(int m, int k)      float right(int k, int n)      void put(int m, int n, float sum)
//   BY_ROW, BY_COLUMN             whether neighbouring m of `left`, or n of `right`, are neighbours in memory, else
//                                 neighbouring k are
//   SOME                          whether some terms do not exist: then `left` is 0 there, and
//   bool exists(int m, int k)     says which do
// K terms at a time are in shared memory, twice: while one half is used, the other is filled.
#include "common.h"

template <int M, int N, int K, int TM, int TN, class Terms>
DEVICE void sum_products(const Terms& terms, int m0, int n0, int rows, int columns, int length) {
  constexpr int T = (M / TM) * (N / TN), PM = M + 4, PN = N + 4, LM = M * K / T, LN = (N * K + T - 1) / T;
  static_assert(LM * T == M * K && TM % 4 == 0 && TN % 4 == 0 && (!Terms::BY_ROW || T % M == 0), "the tile");
  SHARED(float, shared);
  float* const left = shared;                // [2][K][PM]
  float* const right = shared + 2 * K * PM;  // [2][K][PN]
  const int t = threadIdx.x, tm = t % (M / TM), tn = t / (M / TM);
  float a[LM], c[LN];
  auto fetch = [&](int k0) {
    UNROLL for (int i = 0; i < LM; i++) {
      const int id = t + i * T, m = m0 + (Terms::BY_ROW ? id % M : id / K), k = k0 + (Terms::BY_ROW ? id / M : id % K);
      a[i] = m < rows && k < length ? terms.left(m, k) : 0.0f;
    }
    UNROLL for (int i = 0; i < LN; i++) {
      const int id = t + i * T, k = k0 + (Terms::BY_COLUMN ? id / N : id % K);
      const int n = n0 + (Terms::BY_COLUMN ? id % N : id / K);
      c[i] = id < N * K && k < length && n < columns ? terms.right(k, n) : 0.0f;
    }
  };
  // Returns whether a factor on the right is not finite: then 0·factor is no zero, and terms must be left out one by one.
  auto fill = [&](int half) {
    bool infinite = false;
    UNROLL for (int i = 0; i < LM; i++) {
      const int id = t + i * T, m = Terms::BY_ROW ? id % M : id / K, k = Terms::BY_ROW ? id / M : id % K;
      left[(half * K + k) * PM + m] = a[i];
    }
    UNROLL for (int i = 0; i < LN; i++) {
      const int id = t + i * T;
      const int k = Terms::BY_COLUMN ? id / N : id % K, n = Terms::BY_COLUMN ? id % N : id / K;
      if (id < N * K) right[(half * K + k) * PN + n] = c[i];
      infinite = infinite || c[i] * 0.0f != 0.0f;
    }
    return infinite;
  };
  auto row = [&](int i) { return i / 4 * (M / (TM / 4)) + tm * 4 + i % 4; };
  auto column = [&](int j) { return j / 4 * (N / (TN / 4)) + tn * 4 + j % 4; };
  float sum[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) sum[i][j] = 0.0f;
  const int steps = (length + K - 1) / K;
  fetch(0);
  bool infinite = fill(0);
  for (int step = 0; step < steps; step++) {
    if constexpr (Terms::SOME) infinite = barrier_or(infinite);
    else barrier();
    if (step + 1 < steps) fetch((step + 1) * K);
    const float* const A = left + (step & 1) * K * PM;
    const float* const C = right + (step & 1) * K * PN;
    auto add_up = [&](auto all) {
      UNROLL for (int k = 0; k < K; k++) {
        float u[TM], v[TN];
        UNROLL for (int i = 0; i < TM; i += 4) *(float4*)(u + i) = *(const float4*)(A + k * PM + row(i));
        UNROLL for (int j = 0; j < TN; j += 4) *(float4*)(v + j) = *(const float4*)(C + k * PN + column(j));
        UNROLL for (int i = 0; i < TM; i++) {
          if constexpr (!all.value) {
            const int m = m0 + row(i);
            if (m >= rows || step * K + k >= length || !terms.exists(m, step * K + k)) continue;
          }
          UNROLL for (int j = 0; j < TN; j++) sum[i][j] = sum[i][j] + u[i] * v[j];
        }
      }
    };
    if constexpr (Terms::SOME) {
      if (infinite) add_up(Flag<false>());
      else add_up(Flag<true>());
    } else add_up(Flag<true>());
    if (step + 1 < steps) infinite = fill((step + 1) & 1);
  }
  UNROLL for (int j = 0; j < TN; j++)
    UNROLL for (int i = 0; i < TM; i++) {
      const int m = m0 + row(i), n = n0 + column(j);
      if (m < rows && n < columns) terms.put(m, n, sum[i][j]);
    }
}
