// Pooling of images (channels, rows, columns), of B minibatches: the largest or the mean of each window.
//
// The order of sums: a window's elements in row-major order from +0, divided once; the error of an element is the sum of
// the windows' shares that it is in (of the largest: whose largest it is), in row-major order of windows from +0.
#include "common.h"

struct Pooling {
  const float* x;       // (B, images, rows, columns)
  const float* errors;  // (B, images, out_rows, out_columns)
  int* places;          // where the largest element of each window is in its image
  float* out;
  const int* spans;     // begin and end of each output row in x, and of each column; then of each row of x in the output
  i64 images;           // of a minibatch
  int rows;
  int columns;
  int out_rows;
  int out_columns;
  int divisor;          // 0: the elements of the window that lie inside of the image
};

template <bool LARGEST> DEVICE void forward(const Pooling& p) {
  const i64 area = (i64)p.out_rows * p.out_columns, i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.images * area) return;
  const i64 at = blockIdx.z * p.images * area + i;
  const int* const row = p.spans + 2 * (i % area / p.out_columns);
  const int* const column = p.spans + 2 * (p.out_rows + i % p.out_columns);
  const float* const x = p.x + at / area * p.rows * p.columns;
  int place = row[0] * p.columns + column[0];
  float found = LARGEST ? x[place] : 0.0f;
  for (int r = row[0]; r < row[1]; r++)
    for (int c = column[0]; c < column[1]; c++) {
      const float v = x[r * p.columns + c];
      if (!LARGEST) found = found + v;
      else if (v > found || v != v) {
        found = v;
        place = r * p.columns + c;
      }
    }
  const int inside = (row[1] - row[0]) * (column[1] - column[0]);
  p.out[at] = LARGEST ? found : found / (float)(p.divisor ? p.divisor : inside);
  if (LARGEST) p.places[at] = place;
}

KERNEL(largest_of_windows, Pooling, 128, 0) { forward<true>(p); }
KERNEL(mean_of_windows, Pooling, 128, 0) { forward<false>(p); }

template <bool LARGEST> DEVICE void back(const Pooling& p) {
  const i64 area = (i64)p.rows * p.columns, i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.images * area) return;
  const i64 windows = (blockIdx.z * p.images + i / area) * p.out_rows * p.out_columns;
  const int place = i % area;
  const int* const rows = p.spans;
  const int* const columns = rows + 2 * p.out_rows;
  const int* const row = columns + 2 * p.out_columns + 2 * (place / p.columns);
  const int* const column = columns + 2 * (p.out_columns + p.rows) + 2 * (place % p.columns);
  float total = 0.0f;
  for (int r = row[0]; r < row[1]; r++)
    for (int c = column[0]; c < column[1]; c++) {
      const i64 at = windows + (i64)r * p.out_columns + c;
      if (LARGEST) {
        if (p.places[at] == place) total = total + p.errors[at];
      } else {
        const int inside = (rows[2 * r + 1] - rows[2 * r]) * (columns[2 * c + 1] - columns[2 * c]);
        total = total + p.errors[at] / (float)(p.divisor ? p.divisor : inside);
      }
    }
  p.out[blockIdx.z * p.images * area + i] = total;
}

KERNEL(largest_of_windows_back, Pooling, 128, 0) { back<true>(p); }
KERNEL(mean_of_windows_back, Pooling, 128, 0) { back<false>(p); }
