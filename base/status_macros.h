#ifndef EPS_BASE_STATUS_MACROS_H_
#define EPS_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` (an absl::Status) is not OK.
#define EPS_RETURN_IF_ERROR(expression)      \
  do {                                       \
    absl::Status eps_status = (expression);  \
    if (!eps_status.ok()) return eps_status; \
  } while (0)

#define EPS_STATUS_CONCAT_INNER(a, b) a##b
#define EPS_STATUS_CONCAT(a, b) EPS_STATUS_CONCAT_INNER(a, b)

// EPS_ASSIGN_OR_RETURN(auto x, F()): x = value of the StatusOr, or returns its status.
#define EPS_ASSIGN_OR_RETURN(lhs, expression) \
  EPS_ASSIGN_OR_RETURN_IMPL(EPS_STATUS_CONCAT(eps_statusor_, __LINE__), lhs, expression)
#define EPS_ASSIGN_OR_RETURN_IMPL(statusor, lhs, expression) \
  auto statusor = (expression);                              \
  if (!statusor.ok()) return std::move(statusor).status();   \
  lhs = std::move(statusor).value()

#endif  // EPS_BASE_STATUS_MACROS_H_
