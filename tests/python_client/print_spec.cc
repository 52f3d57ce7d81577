// Prints the canonical text of a small job spec.

#include <cstdio>

#include "base/testing/test_specs.h"

int main() {
  std::fputs(eps::TinySyntheticSpec().ToText().c_str(), stdout);
  return 0;
}
