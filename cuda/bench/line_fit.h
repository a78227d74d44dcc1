// The line that is nearest to a few points.
#pragma once

#include <cstddef>
#include <span>

namespace twell::bench {

struct Point {
  double x = 0.0, y = 0.0;
};
struct FittedLine {
  double at_zero = 0.0;
  double slope = 0.0;
};

// By least squares; the points have two different x at least.
inline FittedLine fit_line(std::span<const Point> points) {
  const auto count = static_cast<double>(points.size());
  Point mean;
  for (const Point& p : points) {
    mean.x += p.x / count;
    mean.y += p.y / count;
  }
  double products = 0.0, squares = 0.0;
  for (const Point& p : points) {
    products += (p.x - mean.x) * (p.y - mean.y);
    squares += (p.x - mean.x) * (p.x - mean.x);
  }
  const double slope = products / squares;
  return {mean.y - slope * mean.x, slope};
}

}  // namespace twell::bench
