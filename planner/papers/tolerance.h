#ifndef EPS_PLANNER_PAPERS_TOLERANCE_H_
#define EPS_PLANNER_PAPERS_TOLERANCE_H_

namespace eps::planner {

// Returns the relative tolerance (see Row) of a number that is printed with `decimals` decimals:
// half of its last digit. HalfLastDigit(25.5, 1) is 0.05 / 25.5. REQUIRES printed != 0.
constexpr double HalfLastDigit(double printed, int decimals) {
  double half = 0.5;
  for (int i = 0; i < decimals; ++i) half /= 10;
  return half / (printed < 0 ? -printed : printed);
}

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_TOLERANCE_H_
