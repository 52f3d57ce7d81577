#include "verify/tree_sum.h"

#include "base/check.h"

namespace eps {

void AddInto(const std::vector<float>& addend, std::vector<float>* sum) {
  EPS_CHECK_MSG(addend.size() == sum->size(), addend.size() << " + " << sum->size());
  for (size_t i = 0; i < addend.size(); ++i) (*sum)[i] = (*sum)[i] + addend[i];
}

}  // namespace eps
