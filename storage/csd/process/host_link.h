#ifndef EPS_STORAGE_CSD_PROCESS_HOST_LINK_H_
#define EPS_STORAGE_CSD_PROCESS_HOST_LINK_H_

#include <vector>

#include "storage/csd/rates/device_rates.h"
#include "storage/csd/rates/paced_link.h"

namespace eps::csd {

// The link that all devices of a host share, as slow as its rates. The host waits for it, being the
// end that all its devices have in common. Thread-safe.
class HostLink {
 public:
  explicit HostLink(const HostRates& rates) : rates_(rates) {}

  std::vector<Crossing> up() { return {{&up_, rates_.up}, {&both_, rates_.both}}; }
  std::vector<Crossing> down() { return {{&down_, rates_.down}, {&both_, rates_.both}}; }

  // For transfers of others that share the link, at a rate of their own.
  std::vector<Crossing> OthersUp(double rate) { return {{&up_, rate}}; }
  std::vector<Crossing> OthersDown(double rate) { return {{&down_, rate}}; }

 private:
  const HostRates rates_;
  PacedLink up_;
  PacedLink down_;
  PacedLink both_;
};

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_HOST_LINK_H_
