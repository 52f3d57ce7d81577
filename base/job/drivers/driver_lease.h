#ifndef EPS_BASE_JOB_DRIVERS_DRIVER_LEASE_H_
#define EPS_BASE_JOB_DRIVERS_DRIVER_LEASE_H_

// The lease under which a driver works on a job of the board (docs/protocol.md, "Drivers").

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Names a driver's lease: the board of jobs that gave it, and its generation there. Plain value.
struct DriverLease {
  uint64_t board = 0;       // 0: no lease
  uint64_t generation = 0;  // of two leases of a board, the later one has the higher generation

  bool exists() const { return board != 0; }
  // Whether `other` is a later lease. Leases of different boards cannot be compared, and neither
  // is earlier.
  bool IsBefore(const DriverLease& other) const {
    return board == other.board && generation < other.generation;
  }
  friend bool operator==(const DriverLease& a, const DriverLease& b) {
    return a.board == b.board && a.generation == b.generation;
  }
  friend bool operator!=(const DriverLease& a, const DriverLease& b) { return !(a == b); }
};

// Convert to and from BOARD:GENERATION. InvalidArgument for other text.
std::string ToText(const DriverLease& lease);
absl::StatusOr<DriverLease> ParseDriverLease(absl::string_view text);

// Convert from and to a message v1::DriverLeaseId.
template <class Message>
DriverLease ToDriverLease(const Message& message) {
  return {message.board(), message.generation()};
}
template <class Message>
void SetMessage(const DriverLease& lease, Message* message) {
  message->set_board(lease.board);
  message->set_generation(lease.generation);
}

}  // namespace eps

#endif  // EPS_BASE_JOB_DRIVERS_DRIVER_LEASE_H_
