// Tiles of gradients of weights, shared by the operators of networks.
//
// The order of sums. A sample's own gradient of a weight is Σ_p left[p, i]·right[p, j] over the sample's positions p,
// ascending from +0 in bands of so many positions, and then over the bands by the balanced binary tree. Samples are
// summed by the tree: here those of a group, whose number is a power of two; means.cu adds the groups up.
// Where a sample has one position, its product is the leaf of the tree over samples.
//
// What the factors are says a class `Terms`:
//   Position at(int sample, int position)    what is known of a position
//   Factor factor(int i)                     what is known of a row of `left`
//   float left(Position, Factor, bool valid)      float right(Position, int j, bool valid): 0 unless `valid`
//   int place(int i, int j)                  the number of the weight, or −1: none
#include "common.h"

struct Target {
  float* out;      // (B, stride): means; or (B, groups, stride): sums
  i64 stride;
  i64 weight;      // where the first `size` numbers are, and where those after them
  i64 bias;
  int size;
  int groups;
  int each;        // samples of a group
  int mu;
  int means;       // whether means are written, of one group
};

DEVICE void put(const Target& p, int group, int place, float sum) {
  const i64 at = place < p.size ? p.weight + place : p.bias + (place - p.size);
  if (p.means) p.out[blockIdx.z * p.stride + at] = mean_of(sum, p.mu);
  else p.out[((i64)blockIdx.z * p.groups + group) * p.stride + at] = sum;
}

// Sums that wait for their neighbours in the balanced binary tree: of 2^level leaves each.
template <int LEVELS, int TI, int TJ> struct Waiting {
  float sums[LEVELS][TI][TJ];
  int count;
  METHOD void add(float (*sum)[TJ]) {
    int level = 0;
    for (; count >> level & 1; level++)
      UNROLL for (int i = 0; i < TI; i++)
        UNROLL for (int j = 0; j < TJ; j++) sum[i][j] = sums[level][i][j] + sum[i][j];
    UNROLL for (int i = 0; i < TI; i++)
      UNROLL for (int j = 0; j < TJ; j++) sums[level][i][j] = sum[i][j];
    count++;
  }
  METHOD void total(float (*sum)[TJ]) {  // and begin anew
    bool any = false;
    for (int level = 0; count >> level; level++)
      if (count >> level & 1) {
        UNROLL for (int i = 0; i < TI; i++)
          UNROLL for (int j = 0; j < TJ; j++)
            sum[i][j] = any ? sums[level][i][j] + sum[i][j] : sums[level][i][j];
        any = true;
      }
    count = 0;
  }
};

// Blocks of (I / TI)·(J / TJ) threads with TI × TJ sums each; K positions at a time are in shared memory, twice.
template <int I, int J, int K, int TI, int TJ, class Terms>
DEVICE void sum_bands(const Terms& terms, const Target& target, int i0, int j0, int positions, int band) {
  constexpr int T = (I / TI) * (J / TJ), PI = I + 4, PJ = J + 4, LI = I * K / T, LJ = J * K / T;
  static_assert(LI * T == I * K && LJ * T == J * K && T % K == 0 && TI % 4 == 0 && TJ % 4 == 0, "the tile");
  SHARED(float, shared);
  float* const left = shared;                // [2][K][PI]
  float* const right = shared + 2 * K * PI;  // [2][K][PJ]
  const int t = threadIdx.x, ti = t % (I / TI), tj = t / (I / TI), group = blockIdx.y;
  const int last = smaller(target.mu, (group + 1) * target.each);
  int sample = group * target.each, at = 0, end = smaller(band, positions);  // what is fetched next
  float a[LI], c[LJ];
  typename Terms::Factor factors[LI];
  UNROLL for (int i = 0; i < LI; i++) factors[i] = terms.factor(i0 + t / K + i * (T / K));
  auto fetch = [&]() {
    const bool valid = at + t % K < end;
    const auto position = terms.at(sample, smaller(at + t % K, positions - 1));
    UNROLL for (int i = 0; i < LI; i++) a[i] = terms.left(position, factors[i], valid);
    UNROLL for (int j = 0; j < LJ; j++) c[j] = terms.right(position, j0 + t / K + j * (T / K), valid);
  };
  auto fill = [&](int half) {
    UNROLL for (int i = 0; i < LI; i++) left[(half * K + t % K) * PI + t / K + i * (T / K)] = a[i];
    UNROLL for (int j = 0; j < LJ; j++) right[(half * K + t % K) * PJ + t / K + j * (T / K)] = c[j];
  };
  auto row = [&](int i) { return i / 4 * (I / (TI / 4)) + ti * 4 + i % 4; };
  auto column = [&](int j) { return j / 4 * (J / (TJ / 4)) + tj * 4 + j % 4; };
  Waiting<10, TI, TJ> bands;
  Waiting<4, TI, TJ> samples;
  bands.count = samples.count = 0;
  float sum[TI][TJ];
  UNROLL for (int i = 0; i < TI; i++)
    UNROLL for (int j = 0; j < TJ; j++) sum[i][j] = 0.0f;
  bool ends = false, whole = false, any = false;  // of the positions that are in shared memory: a band, a sample
  for (int half = 1;; half ^= 1) {
    const bool more = sample < last;
    if (more) fetch();
    if (any) {
      const float* const A = left + half * K * PI;
      const float* const C = right + half * K * PJ;
      UNROLL for (int k = 0; k < K; k++) {
        float u[TI], v[TJ];
        UNROLL for (int i = 0; i < TI; i += 4) *(float4*)(u + i) = *(const float4*)(A + k * PI + row(i));
        UNROLL for (int j = 0; j < TJ; j += 4) *(float4*)(v + j) = *(const float4*)(C + k * PJ + column(j));
        UNROLL for (int i = 0; i < TI; i++)
          UNROLL for (int j = 0; j < TJ; j++) sum[i][j] = sum[i][j] + u[i] * v[j];
      }
      if (ends) {
        if (!whole || bands.count) bands.add(sum);
        if (whole) {
          if (bands.count) bands.total(sum);
          samples.add(sum);
        }
        UNROLL for (int i = 0; i < TI; i++)
          UNROLL for (int j = 0; j < TJ; j++) sum[i][j] = 0.0f;
      }
    }
    if (!more) break;
    fill(half ^ 1);
    any = true;
    ends = at + K >= end;
    whole = ends && end == positions;
    if (whole) {
      sample++;
      at = 0;
      end = smaller(band, positions);
    } else if (ends) {
      at = end;
      end = smaller(end + band, positions);
    } else at += K;
    barrier();
  }
  samples.total(sum);
  UNROLL for (int i = 0; i < TI; i++)
    UNROLL for (int j = 0; j < TJ; j++) {
      const int place = terms.place(i0 + row(i), j0 + column(j));
      if (place >= 0) put(target, group, place, sum[i][j]);
    }
}

template <int COUNT> DEVICE float tree(const float* x, const float* e, int apart) {  // of leaves x[m]·e[m·apart]
  if constexpr (COUNT == 1) return x[0] * e[0];
  else return tree<COUNT / 2>(x, e, apart) + tree<COUNT / 2>(x + COUNT / 2, e + COUNT / 2 * apart, apart);
}

// Of samples with one position: 16 samples at a time.
template <int I, int J, int TI, int TJ, class Terms>
DEVICE void sum_leaves(const Terms& terms, const Target& target, int i0, int j0) {
  constexpr int S = 16, T = (I / TI) * (J / TJ), PI = I + 1, PJ = J + 4, LI = I * S / T, LJ = J * S / T;
  static_assert(LI * T == I * S && LJ * T == J * S && TJ == 4, "the tile");
  SHARED(float, shared);
  float* const left = shared;                // [2][S][PI]
  float* const right = shared + 2 * S * PI;  // [2][S][PJ]
  const int t = threadIdx.x, ti = t / (J / TJ), tj = t % (J / TJ), group = blockIdx.y;
  const int last = smaller(target.mu, (group + 1) * target.each);
  int sample = group * target.each;
  float a[LI], c[LJ];
  auto fetch = [&]() {
    UNROLL for (int i = 0; i < LI; i++) {
      const int id = t + i * T;
      const bool valid = sample + id / I < last;
      a[i] = terms.left(terms.at(valid ? sample + id / I : sample, 0), terms.factor(i0 + id % I), valid);
    }
    UNROLL for (int j = 0; j < LJ; j++) {
      const int id = t + j * T;
      const bool valid = sample + id / J < last;
      c[j] = terms.right(terms.at(valid ? sample + id / J : sample, 0), j0 + id % J, valid);
    }
  };
  auto fill = [&](int half) {
    UNROLL for (int i = 0; i < LI; i++) left[(half * S + (t + i * T) / I) * PI + (t + i * T) % I] = a[i];
    UNROLL for (int j = 0; j < LJ; j++) right[(half * S + (t + j * T) / J) * PJ + (t + j * T) % J] = c[j];
  };
  Waiting<4, TI, TJ> waiting;
  waiting.count = 0;
  float sum[TI][TJ];
  for (int half = 1, any = 0;; half ^= 1, any = 1) {
    const bool more = sample < last;
    if (more) fetch();
    if (any) {
      const float* const A = left + half * S * PI + ti * TI;
      const float* const C = right + half * S * PJ + tj * TJ;
      float e[S][TJ];
      UNROLL for (int m = 0; m < S; m++) *(float4*)e[m] = *(const float4*)(C + m * PJ);
      UNROLL for (int i = 0; i < TI; i++) {
        float x[S];
        UNROLL for (int m = 0; m < S; m++) x[m] = A[m * PI + i];
        UNROLL for (int j = 0; j < TJ; j++) sum[i][j] = tree<S>(x, &e[0][j], TJ);
      }
      waiting.add(sum);
    }
    if (!more) break;
    fill(half ^ 1);
    sample += S;
    barrier();
  }
  waiting.total(sum);
  UNROLL for (int i = 0; i < TI; i++)
    UNROLL for (int j = 0; j < TJ; j++) {
      const int place = terms.place(i0 + ti * TI + i, j0 + tj * TJ + j);
      if (place >= 0) put(target, group, place, sum[i][j]);
    }
}
