// Judges a matrix by its worst row: by one norm of the whole, a wrong row in 16,384 would pass.
#pragma once

#include <cstdint>
#include <vector>

namespace twell::bench {

// How far row r of the sparse layer, a, may be from row r of the dense one, b:
//
//   ‖a_r − b_r‖ / max(‖b_r‖, kRowFloor · rms of all ‖b‖)  ≤  kRowBound
//
// With y = Σ h_n d_n over the neurons that fired and h = g u:
//  - the dense layer rounds u and h to bf16, 2⁻⁸ each at most, which the sparse one keeps in f32:
//    2⁻⁷ of a term;
//  - g is rounded once by both, but sums of another order may fall on either side of a tie: one
//    place, 2⁻⁷ at most. Together 2⁻⁶ of a term;
//  - y is rounded by both, 2⁻⁸ of an element each at most: 2⁻⁷ of the row.
// A row of one term is thus off by 2⁻⁶ + 2⁻⁷ = 0.023 at most. n terms in D dimensions can be worse
// by (1 + √(n/D)) / (1 − √(n/D)), the ratio of the extreme singular values of n random rows of Wd:
// 1.3 for 29 of 2,048, and 0.028 in all. Errors of many terms are not all extreme at once: a
// rounding is off by 2⁻⁹·² in the mean square, so two of a term and two of y make 0.0033 for any
// number of terms. 2⁻⁵ = 0.031 is above the worst case of few terms and nine times the mean square
// of many.
//
// A gate near its threshold may fire in one sum and not in the other. f32 sums of 2,048 products
// whose partial sums are near 1 differ by 128 · 2⁻²³ · 2 = 3e-5 at most, also where tensor cores
// truncate each of 128 additions. So such a g is at most 3e-5, where those of other neurons are
// near 0.3: with |u| ≤ 5 it adds at most 3e-5 · 5 ‖d‖ to the row, 1e-4 of a row of 29 neurons,
// √29 · 0.3 ‖d‖. Beside a usual row that is nothing; a row that has hardly another neuron, or none
// at all, is measured by the floor instead, 2⁻⁷ of the rms of all rows: 1e-4 / 2⁻⁷ = 0.013 is
// within the bound, and a row of zeros that should not be one is still 32 times above it.
inline constexpr double kRowBound = 0x1p-5;
inline constexpr double kRowFloor = 0x1p-7;

struct RowError {
  double largest = 0.0;    // of the ratio above; infinite where either row has a NaN or an Inf
  std::int64_t row = 0;    // the first that has it
  std::int64_t wrong = 0;  // rows beyond the bound
  bool within() const { return wrong == 0; }
};

// Of two matrices of bf16 bits [rows, cols]. If all of b is zero, a row of a that is not has an
// infinite error.
RowError worst_row(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                   std::int64_t rows, std::int64_t cols);

}  // namespace twell::bench
