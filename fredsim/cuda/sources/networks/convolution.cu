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

struct alignas(16) Term {
  int r;
  int c;
  int meets;   // how far what the weight meets is from where r and c are 0
  int weight;  // how far the weight is from that of the first term
};

struct Convolution {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // (B, µ, channels, rows, columns)
  const float* errors;       // (B, µ, outputs, out_rows, out_columns)
  float* out;                // z, or the errors of x
  const Term* terms;         // (length,), in the order of the sum
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
  const float* weights;  // of the group
  const float* biases;   // of the group, or null
  int group;
  int area;
  i64 step;
  METHOD Row row(int m) const {
    const int y = m % area / p.out_columns * p.stride_rows - p.pad_rows;
    const int x = m % area % p.out_columns * p.stride_columns - p.pad_columns;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.channels + group * (p.channels / p.groups);
    return {p.x + image * p.rows * p.columns + y * p.columns + x, y, x};
  }
  METHOD float left(const Row& at, int k, bool valid) const {
    const Term term = p.terms[k];
    const bool inside = valid & ((u32)(at.y + term.r) < (u32)p.rows) & ((u32)(at.x + term.c) < (u32)p.columns);
    return value_at(at.from + term.meets, p.x, inside);
  }
  METHOD bool exists(const Row&, int) const { return true; }
  METHOD float right(int k, int n, bool valid) const {
    return value_at(weights + n * p.each + p.terms[k].weight, weights, valid);
  }
  METHOD float* out(int m) const {
    const int first = group * (p.outputs / p.groups);
    return p.out + (((i64)blockIdx.z * p.mu + m / area) * p.outputs + first) * area + m % area;
  }
  METHOD float finished(int n, float sum) const { return biases ? sum + biases[n] : sum; }
};

struct Back {
  static constexpr bool BY_ROW = true, BY_COLUMN = true, SOME = true;
  using Row = Corner;  // in the errors
  const Convolution& p;
  const float* weights;  // of the group
  int taps;              // of a channel
  int group;
  int area;              // of the class's positions in an image
  int columns;
  int first_row;
  int first_column;
  const Term* terms;     // of the class
  i64 step;
  METHOD Row row(int m) const {
    const int y = m % area / columns, x = m % area % columns;
    const i64 image = ((i64)blockIdx.z * p.mu + m / area) * p.outputs + group * (p.outputs / p.groups);
    return {p.errors + image * p.out_rows * p.out_columns + y * p.out_columns + x, y, x};
  }
  METHOD bool exists(const Row& at, int k) const {
    const Term term = terms[k];
    return ((u32)(at.y + term.r) < (u32)p.out_rows) & ((u32)(at.x + term.c) < (u32)p.out_columns);
  }
  METHOD float left(const Row& at, int k, bool valid) const {
    const Term term = terms[k];
    const bool inside = ((u32)(at.y + term.r) < (u32)p.out_rows) & ((u32)(at.x + term.c) < (u32)p.out_columns);
    return value_at(at.from + term.meets, p.errors, valid & inside);
  }
  METHOD float right(int k, int n, bool valid) const {
    return value_at(weights + terms[k].weight + n * taps, weights, valid);
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
  const float* const parameters = p.held[blockIdx.z];
  const int first = group * (p.outputs / p.groups);
  const float* const biases = p.bias < 0 ? nullptr : parameters + p.bias + first;
  const Forward terms = {p, parameters + p.weight + (i64)first * p.each, biases, group, area, area};
  sum_products<M, N, 16, TM, 4>(terms, blockIdx.x * M, n0, p.mu * area, p.outputs / p.groups, p.each);
}

template <int M, int N, int TM> DEVICE void convolve_back(const Convolution& p) {
  const int group = blockIdx.y / p.tiles, n0 = blockIdx.y % p.tiles * N, classes = p.stride_rows * p.stride_columns;
  int number = 0;
  while (number + 1 < classes && (int)blockIdx.x >= p.classes[5 * (number + 1)]) number++;
  const int* const own = p.classes + 5 * number;
  const int area = own[3] * own[4], row = number / p.stride_columns, column = number % p.stride_columns;
  const float* const weights = p.held[blockIdx.z] + p.weight + (i64)group * (p.outputs / p.groups) * p.each;
  const int taps = p.each / (p.channels / p.groups);
  const Back terms = {p, weights, taps, group, area, own[4], row, column, p.terms + own[1], (i64)p.rows * p.columns};
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
  struct Factor {
    int r;
    int c;
    int meets;
    float otherwise;  // if there is no such weight: 1 for the row behind the last, that of the bias
  };
  METHOD Factor factor(int i) const {
    if (i >= p.each) return {-2 * p.rows - p.pad_rows, 0, 0, i == p.each ? 1.0f : 0.0f};  // which is outside
    const Term term = p.terms[i];
    return {term.r, term.c, term.meets, 0.0f};
  }
  METHOD float left(const Position& at, const Factor& of, bool valid) const {
    const bool inside = ((u32)(at.x.y + of.r) < (u32)p.rows) & ((u32)(at.x.x + of.c) < (u32)p.columns);
    const float value = *(valid & inside ? at.x.from + of.meets : p.x);
    return !valid ? 0.0f : inside ? value : of.otherwise;
  }
  METHOD float right(const Position& at, int j, bool valid) const {
    const int own = p.outputs / p.groups, area = p.out_rows * p.out_columns;
    return value_at(at.errors + (i64)smaller(j, own - 1) * area, p.errors, valid & (j < own));
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
