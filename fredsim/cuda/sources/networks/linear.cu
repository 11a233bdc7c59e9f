// Dense layers at every position of a sample, of B minibatches, each at its own parameters.
//
// The order of sums, for rows (positions of samples) m:
//   forward  y[m, j] = (Σ_k x[m, k]·w[k, j], k ascending from +0) + b[j]
//   back     Σ_j δ[m, j]·w[k, j], j ascending from +0
//   weights  a sample's own gradient is Σ x[m, k]·δ[m, j], or Σ 1·δ[m, j] of a bias, over its positions from +0, in bands
//            of so many positions, the bands by the tree (samples.h)
// A pass takes rows times a matrix, which lies in memory row by row or column by column.
#include "networks/products.h"
#include "networks/samples.h"

struct Matrix {
  const float* const* held;  // (B,): each minibatch's parameters
  const float* x;            // (B, rows, length)
  float* out;                // (B, rows, columns)
  i64 weight;                // where the matrix (length, columns), or (columns, length), is in the parameters
  i64 bias;                  // −1: there is none
  int rows;
  int length;
  int columns;
};

template <bool TURNED> struct Rows {
  static constexpr bool BY_ROW = false, BY_COLUMN = !TURNED, SOME = false;
  using Row = const float*;
  const Matrix& p;
  const float* parameters;
  i64 step;
  METHOD Row row(int m) const { return p.x + ((i64)blockIdx.z * p.rows + m) * p.length; }
  METHOD float left(Row at, int k, bool valid) const { return value_at(at + k, p.x, valid); }
  METHOD bool exists(Row, int) const { return true; }
  METHOD float right(int k, int n, bool valid) const {
    const i64 place = TURNED ? (i64)n * p.length + k : (i64)k * p.columns + n;
    return value_at(parameters + p.weight + place, parameters, valid);
  }
  METHOD float* out(int m) const { return p.out + ((i64)blockIdx.z * p.rows + m) * p.columns; }
  METHOD float finished(int n, float sum) const { return p.bias < 0 ? sum : sum + parameters[p.bias + n]; }
};

template <int M, int N, int TM, bool TURNED> DEVICE void multiply(const Matrix& p) {
  const Rows<TURNED> terms = {p, p.held[blockIdx.z], 1};
  sum_products<M, N, 16, TM, 4>(terms, blockIdx.x * M, blockIdx.y * N, p.rows, p.columns, p.length);
}

KERNEL(multiply_64, Matrix, 128, 4 * 2 * 16 * (68 + 68)) { multiply<64, 64, 8, false>(p); }
KERNEL(multiply_32, Matrix, 64, 4 * 2 * 16 * (36 + 36)) { multiply<32, 32, 4, false>(p); }
KERNEL(multiply_16, Matrix, 32, 4 * 2 * 16 * (36 + 20)) { multiply<32, 16, 4, false>(p); }
KERNEL(multiply_turned_64, Matrix, 128, 4 * 2 * 16 * (68 + 68)) { multiply<64, 64, 8, true>(p); }
KERNEL(multiply_turned_32, Matrix, 64, 4 * 2 * 16 * (36 + 36)) { multiply<32, 32, 4, true>(p); }
KERNEL(multiply_turned_16, Matrix, 32, 4 * 2 * 16 * (36 + 20)) { multiply<32, 16, 4, true>(p); }

struct MatrixWeights {
  const float* x;       // (B, µ, positions, inputs)
  const float* errors;  // (B, µ, positions, outputs)
  Target target;
  int positions;
  int band;
  int inputs;
  int outputs;
  int biased;
  int turned;           // whether the weight is (outputs, inputs)
};

struct MatrixTerms {
  const MatrixWeights& p;
  using Position = i64;  // the number of the row
  METHOD Position at(int sample, int position) const {
    return ((i64)blockIdx.z * p.target.mu + sample) * p.positions + position;
  }
  using Factor = int;  // its number; the row behind the last is that of the bias
  METHOD Factor factor(int i) const { return i; }
  METHOD float left(Position at, Factor i, bool valid) const {
    const float value = *(valid & (i < p.inputs) ? p.x + at * p.inputs + i : p.x);
    return !valid | (i > p.inputs) ? 0.0f : i < p.inputs ? value : 1.0f;
  }
  METHOD float right(Position at, int j, bool valid) const {
    return value_at(p.errors + at * p.outputs + j, p.errors, valid & (j < p.outputs));
  }
  METHOD int place(int i, int j) const {
    if (j >= p.outputs || i >= p.inputs + p.biased) return -1;
    if (i == p.inputs) return p.inputs * p.outputs + j;
    return p.turned ? j * p.inputs + i : i * p.outputs + j;
  }
};

KERNEL(matrix_weights, MatrixWeights, 128, 4 * 2 * 16 * (68 + 36)) {
  const int across = (p.inputs + p.biased + 63) / 64;
  const MatrixTerms terms = {p};
  const int i0 = blockIdx.x % across * 64, j0 = blockIdx.x / across * 32;
  sum_bands<64, 32, 16, 4, 4>(terms, p.target, i0, j0, p.positions, p.band);
}

KERNEL(matrix_leaves, MatrixWeights, 128, 4 * 2 * 16 * (65 + 36)) {
  const int across = (p.inputs + p.biased + 63) / 64;
  const MatrixTerms terms = {p};
  const int i0 = blockIdx.x % across * 64, j0 = blockIdx.x / across * 32;
  sum_leaves<64, 32, 4, 4>(terms, p.target, i0, j0);
}
