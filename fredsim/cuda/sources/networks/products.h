// Tiles of sums of products, shared by the operators of networks.
//
// The order of sums: out[m, n] = Σ_k left[m, k]·right[k, n], k ascending from +0. A thread holds TM × TN of the sums in
// registers; no sum is divided between threads. Terms beyond the last are 0·0, which change no sum: one that begins at
// +0 is never −0.
//
// What the factors are, and where a sum goes, says a class `Terms`:
//   Row row(int m)                what is known of a row of `left`
//   float left(Row, int k, bool valid)      float right(int k, int n, bool valid): 0 unless `valid`, without a branch
//   BY_ROW, BY_COLUMN             whether neighbouring m of `left`, or n of `right`, are neighbours in memory, else
//                                 neighbouring k are
//   SOME                          whether some terms do not exist: then `left` is 0 there, and
//   bool exists(Row, int k)       says which do
//   float* out(int m)             where the sums of a row go, `step` apart
//   float finished(int n, float sum)
#include "common.h"

// What is at an address if `valid`, else 0; `other` is any address that can be read.
DEVICE float value_at(const float* at, const float* other, bool valid) {
  const float value = *(valid ? at : other);
  return valid ? value : 0.0f;
}

template <int M, int N, int K, int TM, int TN, class Terms>
DEVICE void sum_products(const Terms& terms, int m0, int n0, int rows, int columns, int length) {
  constexpr int T = (M / TM) * (N / TN), PM = M + 4, PN = N + 4, LM = M * K / T, LN = N * K / T;
  static_assert(LM * T == M * K && LN * T == N * K && TM % 4 == 0 && TN == 4, "the tile");
  static_assert(Terms::BY_ROW ? T % M == 0 : T % K == 0, "a thread's factors");
  SHARED(float, shared);
  float* const left = shared;                // [2][K][PM]
  float* const right = shared + 2 * K * PM;  // [2][K][PN]
  const int t = threadIdx.x, tm = t % (M / TM), tn = t / (M / TM), steps = (length + K - 1) / K;
  constexpr int OWN = Terms::BY_ROW ? 1 : LM;  // the rows of which a thread reads factors
  typename Terms::Row own[OWN];
  UNROLL for (int i = 0; i < OWN; i++) {
    const int m = m0 + (Terms::BY_ROW ? t % M : t / K + i * (T / K));
    own[i] = terms.row(smaller(m, rows - 1));
  }
  float a[LM], c[LN];
  auto fetch = [&](int k0) {
    UNROLL for (int i = 0; i < LM; i++) {
      const int k = k0 + (Terms::BY_ROW ? t / M + i * (T / M) : t % K);
      a[i] = terms.left(own[Terms::BY_ROW ? 0 : i], smaller(k, length - 1), k < length);
    }
    UNROLL for (int i = 0; i < LN; i++) {
      const int id = t + i * T, k = k0 + (Terms::BY_COLUMN ? id / N : id % K);
      const int n = n0 + (Terms::BY_COLUMN ? id % N : id / K);
      c[i] = terms.right(smaller(k, length - 1), smaller(n, columns - 1), k < length && n < columns);
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
      const int id = t + i * T, k = Terms::BY_COLUMN ? id / N : id % K, n = Terms::BY_COLUMN ? id % N : id / K;
      right[(half * K + k) * PN + n] = c[i];
      infinite = infinite || c[i] * 0.0f != 0.0f;
    }
    return infinite;
  };
  auto row = [&](int i) { return i / 4 * (M / (TM / 4)) + tm * 4 + i % 4; };
  float sum[TM][TN];
  UNROLL for (int i = 0; i < TM; i++)
    UNROLL for (int j = 0; j < TN; j++) sum[i][j] = 0.0f;
  bool infinite = false;
  for (int step = -1; step < steps; step++) {  // the terms of `step` are added, and the next ones fetched
    const bool more = step + 1 < steps;
    if (more) fetch((step + 1) * K);
    const float* const A = left + (step & 1) * K * PM;
    const float* const C = right + (step & 1) * K * PN + tn * TN;
    auto add_up = [&](int k, auto taken) {
      float u[TM], v[TN];
      UNROLL for (int i = 0; i < TM; i += 4) *(float4*)(u + i) = *(const float4*)(A + k * PM + row(i));
      *(float4*)v = *(const float4*)(C + k * PN);
      UNROLL for (int i = 0; i < TM; i++) {
        const bool takes = taken(i);
        UNROLL for (int j = 0; j < TN; j++) sum[i][j] = takes ? sum[i][j] + u[i] * v[j] : sum[i][j];
      }
    };
    if (Terms::SOME && infinite) {
      const int count = smaller(K, length - step * K);
      UNROLL_NOT for (int k = 0; k < count; k++)
        add_up(k, [&](int i) { return terms.exists(terms.row(smaller(m0 + row(i), rows - 1)), step * K + k); });
    } else if (step >= 0) {
      UNROLL for (int k = 0; k < K; k++) add_up(k, [](int) { return true; });
    }
    infinite = more && fill((step + 1) & 1);
    if (Terms::SOME) infinite = barrier_or(infinite);
    else barrier();
  }
  UNROLL for (int i = 0; i < TM; i++) {
    const int m = m0 + row(i);
    if (m >= rows) continue;
    float* const out = terms.out(m);
    UNROLL for (int j = 0; j < TN; j++) {
      const int n = n0 + tn * TN + j;
      if (n < columns) out[(i64)n * terms.step] = terms.finished(n, sum[i][j]);
    }
  }
}
