// The arithmetic of update rules in OpenCL C, for the files of the rules (NAME.cl).
//
// Each operation has the bits of x86 with denormals read and written as zeros of their sign
// (FTZ and DAZ), whatever the device does with denormals: it rounds once, and a result is tiny if
// it is below FLT_MIN after rounding to 24 bits. The bits of NaN are unspecified. Never write a
// product and a sum of floats in one expression but through these functions.
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL FP_CONTRACT OFF

// The least magnitude that rounds to FLT_MIN with 24 bits. Denormals have fewer, so that less than
// this rounds to FLT_MIN among them.
#define LEAST_NORMAL (0x1p-126 - 0x1p-151)

float Flush(float x) { return fabs(x) < FLT_MIN ? copysign(0.0f, x) : x; }

// Returns `rounded`, the float that the device makes of a number, or what x86 makes of it if that
// may differ.
float Settle(double number, float rounded) {
  const double magnitude = fabs(number);
  if (magnitude < LEAST_NORMAL) return copysign(0.0f, rounded);
  return magnitude <= FLT_MIN ? copysign(FLT_MIN, rounded) : rounded;
}

float Mul(float a, float b) {
  a = Flush(a);
  b = Flush(b);
  const float product = a * b;
  return fabs(product) > FLT_MIN ? product : Settle((double)a * (double)b, product);
}

float Div(float a, float b) {
  a = Flush(a);
  b = Flush(b);
  const float quotient = a / b;
  return fabs(quotient) > FLT_MIN ? quotient : Settle((double)a / (double)b, quotient);
}

// Sums of floats that are denormal are exact.
float Add(float a, float b) { return Flush(Flush(a) + Flush(b)); }
float Sub(float a, float b) { return Flush(Flush(a) - Flush(b)); }

float Sqrt(float x) { return sqrt(Flush(x)); }

double Wide(float x) { return (double)Flush(x); }
float Narrow(double x) { return Settle(x, (float)x); }
