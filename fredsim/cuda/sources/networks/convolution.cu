// Convolutions of images (channels, rows, columns), of B minibatches of µ samples, each at its own parameters.
//
// The order of sums, the kernel's row being r, its column c, and the channels those of a group:
//   forward  z = (Σ x·w from +0, ascending in r, c, input channel) + b; places outside the image are factors of +0
//   back     Σ δ·w from +0, ascending in r, c, output channel, over the outputs that exist; with strides, positions of x
//            are in classes, by which places of the kernel they can meet, and a tile has positions of one class
//   weights  a sample's own gradient is Σ x·δ, or Σ 1·δ of a bias, over output positions in row-major order from +0, in
//            bands of 8 rows, the bands by the tree (samples.h)
#include "networks/products.h"
#include "networks/samples.h"

struct Convolution {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // (B, µ, channels, rows, columns)
  const float* errors;       // (B, µ, outputs, out_rows, out_columns)
  float* out;                // z, or the errors of x
  const int* terms;          // (length, 4), in the order of the sum: r, c, how far what w meets is from where r and c are
                             // 0, and how far w is from that of the first term
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
  const int* classes;        // of the positions of x: the first block, the first term, how many terms, rows, columns
};

struct Corner {  // of an image's first channel of a group: where r and c are 0, perhaps outside
  const float* from;
  int y;
  int x;
};

struct Forward {
  static constexpr bool BY_ROW = true, BY_COLUMN = false, SOME = false;
  using Row = Corner;
  const Convolution& p;
  const float* parameters;
  int group;
  int area;
  i64 step;
  METHOD Row row(int m) const {
    const int y = m % area / p.out_columns * p.stride_rows - p.pad_rows;
    const int x = m % area % p.out_columns * p.stride_columns - p.pad_columns;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.channels + group * (p.channels / p.groups);
    return {p.x + image * p.rows * p.columns + y * p.columns + x, y, x};
  }
  METHOD float left(const Row& at, int k) const {
    const int* const term = p.terms + 4 * k;
    const bool inside = (u32)(at.y + term[0]) < (u32)p.rows && (u32)(at.x + term[1]) < (u32)p.columns;
    return inside ? at.from[term[2]] : 0.0f;
  }
  METHOD bool exists(const Row&, int) const { return true; }
  METHOD int output(int n) const { return group * (p.outputs / p.groups) + n; }
  METHOD float right(int k, int n) const {
    return parameters[p.weight + (i64)output(n) * p.each + p.terms[4 * k + 3]];
  }
  METHOD float* out(int m) const {
    return p.out + (((i64)blockIdx.z * p.mu + m / area) * p.outputs + output(0)) * area + m % area;
  }
  METHOD float finished(int n, float sum) const { return p.bias < 0 ? sum : sum + parameters[p.bias + output(n)]; }
};

struct Back {
  static constexpr bool BY_ROW = true, BY_COLUMN = true, SOME = true;
  using Row = Corner;  // in the errors
  const Convolution& p;
  const float* parameters;
  int group;
  int area;            // of the class's positions in an image
  int columns;
  int first_row;
  int first_column;
  const int* terms;    // (length, 4) of the class, as in Convolution
  i64 step;
  METHOD Row row(int m) const {
    const int y = m % area / columns, x = m % area % columns;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.outputs + group * (p.outputs / p.groups);
    return {p.errors + image * p.out_rows * p.out_columns + y * p.out_columns + x, y, x};
  }
  METHOD bool exists(const Row& at, int k) const {
    const int* const term = terms + 4 * k;
    return (u32)(at.y + term[0]) < (u32)p.out_rows && (u32)(at.x + term[1]) < (u32)p.out_columns;
  }
  METHOD float left(const Row& at, int k) const { return exists(at, k) ? at.from[terms[4 * k + 2]] : 0.0f; }
  METHOD float right(int k, int n) const {
    const int first = group * (p.outputs / p.groups), taps = p.each / (p.channels / p.groups);
    return parameters[p.weight + (i64)first * p.each + terms[4 * k + 3] + n * taps];
  }
  METHOD float* out(int m) const {
    const int y = m % area / columns * p.stride_rows + first_row;
    const int x = m % area % columns * p.stride_columns + first_column;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.channels + group * (p.channels / p.groups);
    return p.out + (image * p.rows + y) * p.columns + x;
  }
  METHOD float finished(int, float sum) const { return sum; }
};

template <int M, int N, int TM> DEVICE void convolve(const Convolution& p) {
  const int group = blockIdx.y / p.tiles, n0 = blockIdx.y % p.tiles * N, area = p.out_rows * p.out_columns;
  const Forward terms = {p, p.held[blockIdx.z], group, area, area};
  sum_products<M, N, 16, TM, 4>(terms, blockIdx.x * M, n0, p.mu * area, p.outputs / p.groups, p.each);
}

template <int M, int N, int TM> DEVICE void convolve_back(const Convolution& p) {
  const int group = blockIdx.y / p.tiles, n0 = blockIdx.y % p.tiles * N, classes = p.stride_rows * p.stride_columns;
  int number = 0;
  while (number + 1 < classes && (int)blockIdx.x >= p.classes[5 * (number + 1)]) number++;
  const int* const own = p.classes + 5 * number;
  const int area = own[3] * own[4], row = number / p.stride_columns, column = number % p.stride_columns;
  const Back terms = {p, p.held[blockIdx.z], group, area, own[4], row, column, p.terms + 4 * own[1],
                      (i64)p.rows * p.columns};
  sum_products<M, N, 16, TM, 4>(terms, (blockIdx.x - own[0]) * M, n0, p.mu * area, p.channels / p.groups, own[2]);
}

KERNEL(convolve_32_16, Convolution, 32, 4 * 2 * 16 * (36 + 20)) { convolve<32, 16, 4>(p); }
KERNEL(convolve_64_16, Convolution, 64, 4 * 2 * 16 * (68 + 20)) { convolve<64, 16, 4>(p); }
KERNEL(convolve_64_32, Convolution, 64, 4 * 2 * 16 * (68 + 36)) { convolve<64, 32, 8>(p); }
KERNEL(convolve_64_64, Convolution, 128, 4 * 2 * 16 * (68 + 68)) { convolve<64, 64, 8>(p); }
KERNEL(convolve_back_32_16, Convolution, 32, 4 * 2 * 16 * (36 + 20)) { convolve_back<32, 16, 4>(p); }
KERNEL(convolve_back_64_16, Convolution, 64, 4 * 2 * 16 * (68 + 20)) { convolve_back<64, 16, 4>(p); }
KERNEL(convolve_back_64_32, Convolution, 64, 4 * 2 * 16 * (68 + 36)) { convolve_back<64, 32, 8>(p); }
KERNEL(convolve_back_64_64, Convolution, 128, 4 * 2 * 16 * (68 + 68)) { convolve_back<64, 64, 8>(p); }

struct ConvolutionWeights {
  Convolution of;  // its `terms` are those of the numbers of a weight, in their order in memory
  Target target;
};

struct Weights {
  const Convolution& p;
  int group;
  struct Position {
    Corner x;
    const float* errors;
  };
  METHOD Position at(int sample, int position) const {
    const int y = position / p.out_columns * p.stride_rows - p.pad_rows, area = p.out_rows * p.out_columns;
    const int x = position % p.out_columns * p.stride_columns - p.pad_columns;
    const i64 number = (i64)blockIdx.z * p.mu + sample;
    const i64 image = number * p.channels + group * (p.channels / p.groups);
    const i64 errors = (number * p.outputs + group * (p.outputs / p.groups)) * area + position;
    return {{p.x + image * p.rows * p.columns + y * p.columns + x, y, x}, p.errors + errors};
  }
  METHOD float left(const Position& at, int i) const {
    if (i >= p.each) return i == p.each ? 1.0f : 0.0f;  // the row behind the last is that of the bias
    const int* const term = p.terms + 4 * i;
    const bool inside = (u32)(at.x.y + term[0]) < (u32)p.rows && (u32)(at.x.x + term[1]) < (u32)p.columns;
    return inside ? at.x.from[term[2]] : 0.0f;
  }
  METHOD float right(const Position& at, int j) const {
    return j < p.outputs / p.groups ? at.errors[(i64)j * p.out_rows * p.out_columns] : 0.0f;
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
