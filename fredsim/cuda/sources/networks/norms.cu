// Normalisation: y = ((x − m)·r)·γ + β over sets of elements, of B minibatches: fredsim.numerics.ops.norms.
//
// The order of sums. A set is made of units (channels of a group, channels at a position, or samples) with so many
// positions each. S sums a unit's positions in row-major order from +0 in bands, the bands by the balanced binary tree,
// and then the units by the tree. m = S(x)/N, v = S((x − m)·(x − m))/N, r = 1/√(v + ε); with d = δ·γ and x̂ = (x − m)·r
// the error of x is r·((d − S(d)/N) − x̂·(S(d·x̂)/N)). A sample's own gradients of γ and β are the sums of δ·x̂ and of δ
// over its positions, likewise in bands.
#include "common.h"

enum Kind { WHOLE, WITHOUT_MEAN, FROZEN };

struct Norm {
  const float* const* held;  // (B,)
  const float* x;            // (B, size)
  const float* errors;       // (B, size), of y
  float* out;                // y, or the error of x
  float* kept;               // (B, sets, 2): m and r
  i64 size;
  i64 set_stride;            // how far sets begin apart, and the units of a set, and the positions of a unit
  i64 unit_stride;
  i64 position_stride;
  i64 weight;                // where γ, β, and with FROZEN mean and variance are in the parameters; −1: there are none
  i64 bias;
  i64 mean;
  i64 variance;
  int sets;
  int units;
  int positions;
  int band;
  int every;                 // the channel of unit u of set s is s % every · of_set + u · of_unit
  int of_set;
  int of_unit;
  int kind;
  float eps;
};

// The threads of a block; and the floats of its shared memory: sums, and terms that are to be summed.
#define T 128
#define SLOTS 2048
#define STAGE 8320

DEVICE int bands_of(int positions, int band) { return (positions + band - 1) / band; }

// The tree over `count` numbers in shared memory, which are changed; all threads of the block return the sum.
DEVICE float tree(float* slots, int count) {
  barrier();
  for (int apart = 1; apart < count; apart *= 2) {
    for (int i = threadIdx.x * 2 * apart; i + apart < count; i += T * 2 * apart) slots[i] = slots[i] + slots[i + apart];
    barrier();
  }
  const float total = slots[0] + 0.0f;
  barrier();
  return total;
}

// S of what `term` gives for the position at a place of a unit.
template <class Term> DEVICE float sum_of_set(const Norm& p, float* slots, i64 base, Term term) {
  const int bands = bands_of(p.positions, p.band);
  const bool fits = p.units * (i64)bands <= SLOTS;
  auto sum_of_band = [&](int unit, int band) {
    const int end = smaller(p.positions, (band + 1) * p.band);
    i64 at = base + unit * p.unit_stride + (i64)band * p.band * p.position_stride;
    float total = 0.0f;
    for (int i = band * p.band; i < end; i++, at += p.position_stride) total = total + term(unit, at);
    return total;
  };
  if (fits) {
    // Neighbouring threads read neighbours in memory: a warp the terms of a band. Then a thread adds up those of a band.
    float* const stage = slots + SLOTS;
    const int length = smaller(p.band, p.positions), together = STAGE / (length + 1), warp = threadIdx.x / 32;
    if (p.positions == 1 || together == 0)
      for (int i = threadIdx.x; i < p.units * bands; i += T) slots[i] = sum_of_band(i / bands, i % bands);
    else
      for (int first = 0; first < p.units * bands; first += together) {
        const int count = smaller(together, p.units * bands - first);
        for (int i = warp; i < count; i += T / 32) {
          const int unit = (first + i) / bands, begin = (first + i) % bands * p.band;
          const i64 at = base + unit * p.unit_stride + begin * p.position_stride;
          for (int j = threadIdx.x % 32; j < smaller(length, p.positions - begin); j += 32)
            stage[i * (length + 1) + j] = term(unit, at + j * p.position_stride);
        }
        barrier();
        for (int i = threadIdx.x; i < count; i += T) {
          const int terms = smaller(length, p.positions - (first + i) % bands * p.band);
          float total = 0.0f;
          for (int j = 0; j < terms; j++) total = total + stage[i * (length + 1) + j];
          slots[first + i] = total;
        }
        barrier();
      }
    for (int apart = 1; apart < bands; apart *= 2) {
      barrier();
      const int pairs = (bands + 2 * apart - 1) / (2 * apart);
      for (int i = threadIdx.x; i < p.units * pairs; i += T) {
        float* const own = slots + i / pairs * bands;
        const int first = i % pairs * 2 * apart;
        if (first + apart < bands) own[first] = own[first] + own[first + apart];
      }
    }
    if (bands > 1) {
      barrier();
      float own[SLOTS / T];
      UNROLL for (int i = 0; i < SLOTS / T; i++) {
        const int unit = threadIdx.x + i * T;
        own[i] = unit < p.units ? slots[unit * bands] : 0.0f;
      }
      barrier();
      UNROLL for (int i = 0; i < SLOTS / T; i++)
        if (threadIdx.x + i * T < p.units) slots[threadIdx.x + i * T] = own[i];
    }
    return tree(slots, p.units);
  }
  float waiting[20];  // sums of units, then of all that went before: few threads have work here
  UNROLL for (int l = 0; l < 20; l++) waiting[l] = 0.0f;
  for (int unit = threadIdx.x; unit < p.units; unit += T) {
    for (int band = 0; band < bands; band++) {
      float sum = sum_of_band(unit, band);
      int level = 0;
      for (; band >> level & 1; level++) sum = waiting[level] + sum;
      waiting[level] = sum;
    }
    float total = 0.0f;
    bool any = false;
    for (int level = 0; bands >> level; level++)
      if (bands >> level & 1) {
        total = any ? waiting[level] + total : waiting[level];
        any = true;
      }
    slots[unit] = total;
  }
  return tree(slots, p.units);
}

DEVICE int channel_of(const Norm& p, int set, int unit) { return set % p.every * p.of_set + unit * p.of_unit; }

// A block has a set.
KERNEL(normalize, Norm, 128, 4 * (2048 + 8320)) {
  SHARED(float, slots);
  const int set = blockIdx.x;
  const i64 base = blockIdx.z * p.size + set * p.set_stride;
  const float* const parameters = p.held[blockIdx.z];
  const float count = (float)(p.units * p.positions);
  float m = 0.0f, r = 0.0f;
  if (p.kind == WHOLE) m = sum_of_set(p, slots, base, [&](int, i64 at) { return p.x[at]; }) / count;
  if (p.kind != FROZEN) {
    const float v = sum_of_set(p, slots, base, [&](int, i64 at) {
      const float apart = p.kind == WHOLE ? p.x[at] - m : p.x[at];
      return apart * apart;
    });
    r = 1.0f / sqrtf(v / count + p.eps);
    if (threadIdx.x == 0) {
      p.kept[2 * ((i64)blockIdx.z * p.sets + set)] = m;
      p.kept[2 * ((i64)blockIdx.z * p.sets + set) + 1] = r;
    }
  }
  for (int i = threadIdx.x; i < p.units * p.positions; i += T) {
    const int unit = i / p.positions, channel = channel_of(p, set, unit);
    const i64 at = base + unit * p.unit_stride + i % p.positions * p.position_stride;
    float apart = p.x[at];
    if (p.kind == FROZEN) {
      m = parameters[p.mean + channel];
      r = 1.0f / sqrtf(parameters[p.variance + channel] + p.eps);
    }
    if (p.kind != WITHOUT_MEAN) apart = apart - m;
    float y = apart * r;
    if (p.weight >= 0) y = y * parameters[p.weight + channel];
    if (p.bias >= 0) y = y + parameters[p.bias + channel];
    p.out[at] = y;
  }
}

struct Known {  // m and r of a set, or with FROZEN those of a channel
  float m;
  float r;
};

DEVICE Known known(const Norm& p, int set, int channel) {
  if (p.kind == FROZEN) {
    const float* const parameters = p.held[blockIdx.z];
    return {parameters[p.mean + channel], 1.0f / sqrtf(parameters[p.variance + channel] + p.eps)};
  }
  const float* const kept = p.kept + 2 * ((i64)blockIdx.z * p.sets + set);
  return {kept[0], kept[1]};
}

DEVICE float normal(const Norm& p, const Known& of, i64 at) {
  return (p.kind == WITHOUT_MEAN ? p.x[at] : p.x[at] - of.m) * of.r;
}

KERNEL(normalize_back, Norm, 128, 4 * (2048 + 8320)) {
  SHARED(float, slots);
  const int set = blockIdx.x;
  const i64 base = blockIdx.z * p.size + set * p.set_stride;
  const float* const parameters = p.held[blockIdx.z];
  const float count = (float)(p.units * p.positions);
  auto scaled = [&](int unit, i64 at) {
    return p.weight >= 0 ? p.errors[at] * parameters[p.weight + channel_of(p, set, unit)] : p.errors[at];
  };
  float mean = 0.0f, mean_of_normal = 0.0f;
  if (p.kind == WHOLE) mean = sum_of_set(p, slots, base, scaled) / count;
  if (p.kind != FROZEN) {
    const Known of = known(p, set, 0);
    mean_of_normal = sum_of_set(p, slots, base, [&](int unit, i64 at) { return scaled(unit, at) * normal(p, of, at); });
    mean_of_normal = mean_of_normal / count;
  }
  for (int i = threadIdx.x; i < p.units * p.positions; i += T) {
    const int unit = i / p.positions;
    const i64 at = base + unit * p.unit_stride + i % p.positions * p.position_stride;
    const Known of = known(p, set, channel_of(p, set, unit));
    float d = scaled(unit, at);
    if (p.kind == WHOLE) d = d - mean;
    if (p.kind != FROZEN) d = d - normal(p, of, at) * mean_of_normal;
    p.out[at] = of.r * d;
  }
}

struct NormWeights {
  Norm of;
  float* sums;       // (B, µ, 2, channels): the samples' own gradients of γ and of β
  i64 sample_stride;
  i64 channel_stride;
  i64 position_stride;
  int mu;
  int channels;
  int positions;     // of a sample
  int band;
  int sample_sets;   // the set at a position of a channel is sample · sample_sets + channel / group + position · moves
  int group;
  int moves;
};

// A block has some channels of a sample: those of 64 bands, or one. At a time, PIECE terms of each of 64 bands are in
// shared memory: neighbouring threads read neighbours, then a thread adds up those of a band, of δ·x̂ or of δ. A term
// beyond the last is +0, which changes no sum: one that begins at +0 is never −0.
#define BANDS 64
#define PIECE 32
KERNEL(norm_weights, NormWeights, 128, 4 * (2 * 1024 + 2 * 64 * 33)) {
  SHARED(float, slots);                   // [2][1024]: the bands' sums
  float* const stage = slots + 2 * 1024;  // [2][BANDS][PIECE + 1]
  const int bands = bands_of(p.positions, p.band), most = larger(1, BANDS / bands), first = blockIdx.x * most;
  const int channels = smaller(most, p.channels - first), all = channels * bands, sample = blockIdx.y, t = threadIdx.x;
  const i64 base = blockIdx.z * p.of.size + sample * p.sample_stride;
  const bool along = p.position_stride == 1;  // whether neighbouring positions are neighbours in memory, else channels
  for (int begin = 0; begin < all; begin += BANDS) {
    float total = 0.0f;
    for (int at = 0; at < smaller(p.band, p.positions); at += PIECE) {
      barrier();
      for (int id = t; id < BANDS * PIECE; id += T) {
        const int row = along ? id / PIECE : id % BANDS, j = along ? id % PIECE : id / BANDS;
        const int channel = first + (begin + row) % channels, i = (begin + row) / channels * p.band + at + j;
        float error = 0.0f, scaled = 0.0f;
        if (begin + row < all && at + j < p.band && i < p.positions) {
          const i64 place = base + channel * p.channel_stride + i * p.position_stride;
          const int set = sample * p.sample_sets + channel / p.group + i * p.moves;
          error = p.of.errors[place];
          scaled = error * normal(p.of, known(p.of, set, channel), place);
        }
        stage[row * (PIECE + 1) + j] = scaled;
        stage[(BANDS + row) * (PIECE + 1) + j] = error;
      }
      barrier();
      UNROLL for (int j = 0; j < PIECE; j++) total = total + stage[t * (PIECE + 1) + j];
    }
    const int band = begin + t % BANDS;
    if (band < all) slots[t / BANDS * 1024 + band] = total;
  }
  barrier();
  for (int apart = 1; apart < bands; apart *= 2) {
    const int pairs = (bands + 2 * apart - 1) / (2 * apart) * channels;
    for (int id = t; id < 2 * pairs; id += T) {
      float* const own = slots + id / pairs * 1024 + id % pairs % channels;
      const int band = id % pairs / channels * 2 * apart;
      if (band + apart < bands) own[band * channels] = own[band * channels] + own[(band + apart) * channels];
    }
    barrier();
  }
  float* const out = p.sums + ((i64)blockIdx.z * p.mu + sample) * 2 * p.channels + first;
  for (int id = t; id < 2 * channels; id += T) {
    const int which = id / channels, channel = id % channels;
    out[which * p.channels + channel] = slots[which * 1024 + channel];
  }
}
