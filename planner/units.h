#ifndef EPS_PLANNER_UNITS_H_
#define EPS_PLANNER_UNITS_H_

// Quantities that carry their dimensions in their types, so that a formula that mixes units does
// not compile. All values are in bytes, floating-point operations, seconds and dollars. Zero times
// and infinite rates are legal.

#include <limits>

namespace eps::planner {

// value * byte^kBytes * flop^kFlops * second^kSeconds * dollar^kDollars.
template <int kBytes, int kFlops, int kSeconds, int kDollars>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}
  constexpr double value() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) {
    value_ += other.value_;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr Quantity operator*(double factor, Quantity q) {
    return Quantity(factor * q.value_);
  }
  friend constexpr Quantity operator*(Quantity q, double factor) {
    return Quantity(q.value_ * factor);
  }
  friend constexpr Quantity operator/(Quantity q, double divisor) {
    return Quantity(q.value_ / divisor);
  }
  friend constexpr bool operator==(Quantity a, Quantity b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Quantity a, Quantity b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Quantity a, Quantity b) { return a.value_ < b.value_; }
  friend constexpr bool operator>(Quantity a, Quantity b) { return a.value_ > b.value_; }
  friend constexpr bool operator<=(Quantity a, Quantity b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>=(Quantity a, Quantity b) { return a.value_ >= b.value_; }

 private:
  double value_ = 0;
};

template <int kB1, int kF1, int kS1, int kD1, int kB2, int kF2, int kS2, int kD2>
constexpr auto operator*(Quantity<kB1, kF1, kS1, kD1> a, Quantity<kB2, kF2, kS2, kD2> b) {
  return Quantity<kB1 + kB2, kF1 + kF2, kS1 + kS2, kD1 + kD2>(a.value() * b.value());
}
// The ratio of two equal units is a plain number.
template <int kB, int kF, int kS, int kD>
constexpr double operator/(Quantity<kB, kF, kS, kD> a, Quantity<kB, kF, kS, kD> b) {
  return a.value() / b.value();
}
template <int kB1, int kF1, int kS1, int kD1, int kB2, int kF2, int kS2, int kD2>
constexpr auto operator/(Quantity<kB1, kF1, kS1, kD1> a, Quantity<kB2, kF2, kS2, kD2> b) {
  return Quantity<kB1 - kB2, kF1 - kF2, kS1 - kS2, kD1 - kD2>(a.value() / b.value());
}

using Bytes = Quantity<1, 0, 0, 0>;
using Flops = Quantity<0, 1, 0, 0>;
using Seconds = Quantity<0, 0, 1, 0>;
using Dollars = Quantity<0, 0, 0, 1>;
using BytesPerSecond = Quantity<1, 0, -1, 0>;
using FlopsPerSecond = Quantity<0, 1, -1, 0>;
using DollarsPerSecond = Quantity<0, 0, -1, 1>;
using PerSecond = Quantity<0, 0, -1, 0>;  // rate of events

// An infinite rate: every finite amount takes no time.
inline constexpr BytesPerSecond kNoLimit(std::numeric_limits<double>::infinity());

template <int kB, int kF, int kS, int kD>
constexpr Quantity<kB, kF, kS, kD> Max(Quantity<kB, kF, kS, kD> a, Quantity<kB, kF, kS, kD> b) {
  return a < b ? b : a;
}
template <int kB, int kF, int kS, int kD>
constexpr Quantity<kB, kF, kS, kD> Min(Quantity<kB, kF, kS, kD> a, Quantity<kB, kF, kS, kD> b) {
  return b < a ? b : a;
}

}  // namespace eps::planner

#endif  // EPS_PLANNER_UNITS_H_
