#ifndef EPS_SERVER_CORE_RESIDUALS_H_
#define EPS_SERVER_CORE_RESIDUALS_H_

// Holds what sparse gradient codecs left out, for the next contribution of the same part (error
// feedback). A residual is committed together with the contribution that left it out, and reverts
// if the step is skipped (docs/protocol.md, A gradient that is not finite).

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "storage/cuts/cut.h"

namespace eps {

// The residuals of one shard. Thread-compatible.
class Residuals {
 public:
  // Names the contributions, one per step, that share a residual.
  struct Place {
    ChunkId chunk;
    StageId use;
    PartId part;
    friend bool operator<(const Place& a, const Place& b) {
      return std::tie(a.chunk, a.use, a.part) < std::tie(b.chunk, b.use, b.part);
    }
  };
  // Encoded. No bytes: nothing was left out; nullopt: the worker that sent the contribution has it.
  using Residual = std::optional<Bytes>;

  // Keeps what a contribution of the open step left out. Find sees it after Close.
  void Put(const Place& place, Residual residual) { open_[place] = std::move(residual); }
  // Ends the open step; if the step is skipped, drops what Put kept.
  void Close(bool skipped) {
    if (!skipped) {
      for (auto& [place, residual] : open_) closed_[place] = std::move(residual);
    }
    open_.clear();
  }
  // Sets what was left out up to the border that is imported.
  void Import(const Place& place, Bytes residual) { closed_[place] = std::move(residual); }

  // Returns the residual that a place had before the open step.
  Residual Find(const Place& place) const {
    const auto it = closed_.find(place);
    return it == closed_.end() ? Residual(Bytes()) : it->second;
  }
  // Whether this shard has every residual, and no worker has one.
  bool complete() const {
    for (const auto& [place, residual] : closed_) {
      if (!residual.has_value()) return false;
    }
    return true;
  }
  // Returns every residual that this shard had before the open step, in order of places.
  std::vector<CutResidual> All() const {
    std::vector<CutResidual> all;
    for (const auto& [place, residual] : closed_) {
      if (residual.has_value()) all.push_back({place.chunk, place.use, place.part, *residual});
    }
    return all;
  }
  // Returns the places of a chunk that left something out, in order.
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

#endif  // EPS_SERVER_CORE_RESIDUALS_H_
