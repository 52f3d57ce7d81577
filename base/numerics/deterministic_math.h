#ifndef EPS_BASE_NUMERICS_DETERMINISTIC_MATH_H_
#define EPS_BASE_NUMERICS_DETERMINISTIC_MATH_H_

// Elementary functions computed with + - * / only, in one fixed order. The libm of two machines
// differs in the last bits, so the bits of a training run must not depend on it. Errors stay within
// a few units in the last place.

namespace eps {

// Natural logarithm. REQUIRES x normal, finite and above 0.
double DeterministicLog(double x);
// e^x; 0 below -708 and infinity above 709.
double DeterministicExp(double x);
// cos(pi * x). REQUIRES |x| < 2^52.
double DeterministicCosPi(double x);

}  // namespace eps

#endif  // EPS_BASE_NUMERICS_DETERMINISTIC_MATH_H_
