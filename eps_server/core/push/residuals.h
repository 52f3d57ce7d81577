#ifndef EPS_SERVER_CORE_PUSH_RESIDUALS_H_
#define EPS_SERVER_CORE_PUSH_RESIDUALS_H_

// What sparse gradient codecs left out, for the next contribution of the same part (error
// feedback). It is committed with the contribution that left it out, and reverts if the step is
// skipped (PROTOCOL.md section 7).

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "storage/cuts/cut.h"

namespace eps {

// Thread-compatible.
class Residuals {
 public:
  struct Place {
    ChunkId chunk;
    StageId use;
    PartId part;
    friend bool operator<(const Place& a, const Place& b) {
      return std::tie(a.chunk, a.use, a.part) < std::tie(b.chunk, b.use, b.part);
    }
  };
  // Encoded; no bytes: nothing was left out; nullopt: the worker that sent the contribution has it.
  using Residual = std::optional<Bytes>;

  // What a contribution of the open step left out. Not seen by Find before Close.
  void Put(const Place& place, Residual residual) { open_[place] = std::move(residual); }
  // The open step is over: it was updated, or skipped, and then what was put is dropped.
  void Close(bool skipped) {
    if (!skipped) {
      for (auto& [place, residual] : open_) closed_[place] = std::move(residual);
    }
    open_.clear();
  }
  // Sets what was left out up to the border that is imported.
  void Import(const Place& place, Bytes residual) { closed_[place] = std::move(residual); }

  // What was left out before the open step.
  Residual Find(const Place& place) const {
    const auto it = closed_.find(place);
    return it == closed_.end() ? Residual(Bytes()) : it->second;
  }
  // Whether all of it is here, not with workers.
  bool complete() const {
    for (const auto& [place, residual] : closed_) {
      if (!residual.has_value()) return false;
    }
    return true;
  }
  // What was left out before the open step and is here, in order.
  std::vector<CutResidual> All() const {
    std::vector<CutResidual> all;
    for (const auto& [place, residual] : closed_) {
      if (residual.has_value()) all.push_back({place.chunk, place.use, place.part, *residual});
    }
    return all;
  }
  // Places of a chunk of which something was left out, in order.
  std::vector<Place> PlacesOf(ChunkId chunk) const {
    std::vector<Place> places;
    for (auto it = closed_.lower_bound(Place{chunk, StageId(0), PartId(0)});
         it != closed_.end() && it->first.chunk == chunk; ++it) {
      places.push_back(it->first);
    }
    return places;
  }

 private:
  std::map<Place, Residual> open_;
  std::map<Place, Residual> closed_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_RESIDUALS_H_
