// Convolutions of images (channels, rows, columns), of B minibatches of µ samples, each at its own parameters.
//
// The order of sums, the kernel's row being r, its column c, and the channels those of a group:
//   forward  z = (Σ x·w from +0, ascending in r, c, input channel) + b; places outside the image are factors of +0
//   back     Σ δ·w from +0, ascending in r, c, output channel, over the outputs that exist
//   weights  a sample's own gradient is Σ x·δ, or Σ 1·δ of a bias, over output positions in row-major order from +0, in
//            bands of 8 rows, the bands by the tree (samples.h)
#include "networks/products.h"
#include "networks/samples.h"

struct Convolution {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // (B, µ, channels, rows, columns)
  const float* errors;       // (B, µ, outputs, out_rows, out_columns)
  float* out;                // z, or the errors of x
  const int* terms;          // (length, 4), in the order of the sum: r, c, channel of the group, place in a weight
  i64 weight;                // where the parameters are (outputs, channels ÷ groups, kernel's rows, its columns)
  i64 bias;                  // −1: there is none
  int mu;
  int channels;
  int rows;
  int columns;
  int outputs;
  int out_rows;
  int out_columns;
  int groups;
  int each;                  // the numbers of a weight of one output
  int stride_rows;
  int stride_columns;
  int pad_rows;
  int pad_columns;
  int tiles;                 // of the outputs of a group, or of its channels
};

struct Forward {
  static constexpr bool BY_ROW = true, BY_COLUMN = false, SOME = false;
  const Convolution& p;
  const float* w;
  int group;
  METHOD bool exists(int, int) const { return true; }
  METHOD float left(int m, int k) const {
    const int area = p.out_rows * p.out_columns, place = m % area;
    const int* const term = p.terms + 4 * k;
    const int y = place / p.out_columns * p.stride_rows - p.pad_rows + term[0];
    const int x = place % p.out_columns * p.stride_columns - p.pad_columns + term[1];
    const int own = p.channels / p.groups;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.channels + group * own + term[2];
    return (u32)y < (u32)p.rows && (u32)x < (u32)p.columns ? p.x[(image * p.rows + y) * p.columns + x] : 0.0f;
  }
  METHOD float right(int k, int n) const {
    return w[p.weight + (i64)(group * (p.outputs / p.groups) + n) * p.each + p.terms[4 * k + 3]];
  }
  METHOD void put(int m, int n, float sum) const {
    const int area = p.out_rows * p.out_columns, output = group * (p.outputs / p.groups) + n;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.outputs + output;
    p.out[image * area + m % area] = p.bias < 0 ? sum : sum + w[p.bias + output];
  }
};

template <bool STRIDES> struct Back {
  static constexpr bool BY_ROW = true, BY_COLUMN = true, SOME = true;
  const Convolution& p;
  const float* w;
  int group;
  // Return where the output position lies at which the kernel's place of term k meets row m of x; −1 if there is none.
  METHOD int position(int m, int k) const {
    const int place = m % (p.rows * p.columns);
    const int* const term = p.terms + 4 * k;
    int y = place / p.columns + p.pad_rows - term[0], x = place % p.columns + p.pad_columns - term[1];
    if (STRIDES) {
      if (y < 0 || x < 0 || y % p.stride_rows || x % p.stride_columns) return -1;
      y /= p.stride_rows;
      x /= p.stride_columns;
    }
    return (u32)y < (u32)p.out_rows && (u32)x < (u32)p.out_columns ? y * p.out_columns + x : -1;
  }
  METHOD bool exists(int m, int k) const { return position(m, k) >= 0; }
  METHOD float left(int m, int k) const {
    const int at = position(m, k), own = p.outputs / p.groups;
    const i64 image = ((i64)blockIdx.z * p.mu + m / (p.rows * p.columns)) * p.outputs + group * own + p.terms[4 * k + 2];
    return at < 0 ? 0.0f : p.errors[image * p.out_rows * p.out_columns + at];
  }
  METHOD float right(int k, int n) const {
    const int output = group * (p.outputs / p.groups) + p.terms[4 * k + 2], area = p.each / (p.channels / p.groups);
    return w[p.weight + (i64)output * p.each + n * area + p.terms[4 * k + 3] % area];
  }
  METHOD void put(int m, int n, float sum) const {
    const int area = p.rows * p.columns;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.channels + group * (p.channels / p.groups) + n;
    p.out[image * area + m % area] = sum;
  }
};

template <int N, int TM, class Terms> DEVICE void convolve(const Convolution& p, bool back) {
  const int group = blockIdx.y / p.tiles, n0 = blockIdx.y % p.tiles * N;
  const int columns = (back ? p.channels : p.outputs) / p.groups;
  const int rows = p.mu * (back ? p.rows * p.columns : p.out_rows * p.out_columns);
  const int length = back ? p.each / (p.channels / p.groups) * (p.outputs / p.groups) : p.each;
  const Terms terms = {p, p.held[blockIdx.z], group};
  sum_products<64, N, 16, TM, 4>(terms, blockIdx.x * 64, n0, rows, columns, length);
}

KERNEL(convolve_16, Convolution, 64, 4 * 2 * 16 * (68 + 20)) { convolve<16, 4, Forward>(p, false); }
KERNEL(convolve_32, Convolution, 64, 4 * 2 * 16 * (68 + 36)) { convolve<32, 8, Forward>(p, false); }
KERNEL(convolve_64, Convolution, 128, 4 * 2 * 16 * (68 + 68)) { convolve<64, 8, Forward>(p, false); }
KERNEL(convolve_back_16, Convolution, 64, 4 * 2 * 16 * (68 + 20)) { convolve<16, 4, Back<false>>(p, true); }
KERNEL(convolve_back_32, Convolution, 64, 4 * 2 * 16 * (68 + 36)) { convolve<32, 8, Back<false>>(p, true); }
KERNEL(convolve_back_64, Convolution, 128, 4 * 2 * 16 * (68 + 68)) { convolve<64, 8, Back<false>>(p, true); }
KERNEL(convolve_back_strides_16, Convolution, 64, 4 * 2 * 16 * (68 + 20)) { convolve<16, 4, Back<true>>(p, true); }
KERNEL(convolve_back_strides_32, Convolution, 64, 4 * 2 * 16 * (68 + 36)) { convolve<32, 8, Back<true>>(p, true); }
KERNEL(convolve_back_strides_64, Convolution, 128, 4 * 2 * 16 * (68 + 68)) { convolve<64, 8, Back<true>>(p, true); }

struct ConvolutionWeights {
  Convolution of;  // its `terms` are those of the numbers of a weight, in their order in memory
  Target target;
};

struct Weights {
  const Convolution& p;
  int group;
  METHOD float left(int sample, int position, int i) const {
    if (i >= p.each) return i == p.each ? 1.0f : 0.0f;  // the row behind the last is that of the bias
    const int* const term = p.terms + 4 * i;
    const int y = position / p.out_columns * p.stride_rows - p.pad_rows + term[0];
    const int x = position % p.out_columns * p.stride_columns - p.pad_columns + term[1];
    const i64 image = ((i64)blockIdx.z * p.mu + sample) * p.channels + group * (p.channels / p.groups) + term[2];
    return (u32)y < (u32)p.rows && (u32)x < (u32)p.columns ? p.x[(image * p.rows + y) * p.columns + x] : 0.0f;
  }
  METHOD float right(int sample, int position, int j) const {
    const int own = p.outputs / p.groups;
    const i64 image = ((i64)blockIdx.z * p.mu + sample) * p.outputs + group * own + j;
    return j < own ? p.errors[image * p.out_rows * p.out_columns + position] : 0.0f;
  }
  METHOD int place(int i, int j) const {
    const int own = p.outputs / p.groups, output = group * own + j;
    if (j >= own || i > p.each || (i == p.each && p.bias < 0)) return -1;
    return i == p.each ? p.outputs * p.each + output : output * p.each + i;
  }
};

template <int J> DEVICE void weights(const ConvolutionWeights& p) {
  const int across = (p.of.each + (p.of.bias >= 0) + 63) / 64, tile = blockIdx.x;
  const Weights terms = {p.of, tile / across / p.of.tiles};
  const int positions = p.of.out_rows * p.of.out_columns, band = 8 * p.of.out_columns;
  sum_bands<64, J, 16, 4, 4>(terms, p.target, tile % across * 64, tile / across % p.of.tiles * J, positions, band);
}

KERNEL(convolution_weights_16, ConvolutionWeights, 64, 4 * 2 * 16 * (68 + 20)) { weights<16>(p); }
KERNEL(convolution_weights_32, ConvolutionWeights, 128, 4 * 2 * 16 * (68 + 36)) { weights<32>(p); }
