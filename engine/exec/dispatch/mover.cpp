#include "engine/exec/dispatch/mover.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/bf16.h"
#include "kernels/fp8.h"

namespace moe::dispatch {

using kernels::kFp8Block;

template <class T>
void encode(Wire wire, int64_t n, const T* values, void* row) {
  auto* const to = static_cast<uint8_t*>(row);
  switch (wire) {
    case Wire::kFp8: {
      const std::vector<float> narrow(values, values + n);
      std::vector<float> scales(static_cast<size_t>(n / kFp8Block));
      kernels::to_fp8_blocks(narrow.data(), n, to, scales.data());
      std::memcpy(to + n, scales.data(), scales.size() * sizeof(float));
      break;
    }
    case Wire::kBf16:
      for (int64_t i = 0; i < n; ++i) {
        const kernels::Bf16 v = kernels::to_bf16(static_cast<float>(values[i]));
        std::memcpy(to + 2 * i, &v, 2);
      }
      break;
    case Wire::kFp32:
      std::memcpy(to, values, static_cast<size_t>(n) * sizeof(T));
  }
}

template <class T>
void decode(Wire wire, int64_t n, const void* row, T* values) {
  const auto* const from = static_cast<const uint8_t*>(row);
  if (wire == Wire::kFp32) {
    std::memcpy(values, from, static_cast<size_t>(n) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    kernels::Bf16 v{};
    if (wire == Wire::kBf16) {
      std::memcpy(&v, from + 2 * i, 2);
    } else {
      float scale = 0;
      std::memcpy(&scale, from + n + i / kFp8Block * 4, sizeof(float));
      v = kernels::to_bf16(kernels::from_e4m3(from[i]) * scale);
    }
    values[i] = to_float(v);
  }
}

template <class T>
Mover<T>::Mover(const Route& route, const Exchange& exchange, const Choices& choices,
                Communicator& comm, std::string what)
    : route_(route),
      exchange_(exchange),
      choices_(choices),
      walk_(route_, exchange_, choices_),
      comm_(comm),
      what_(std::move(what)),
      place_(static_cast<size_t>(choices.tokens() * walk_.slots())) {
  for (auto& sent : sent_) sent.resize(static_cast<size_t>(exchange.ranks));
}

template <class T>
int64_t& Mover<T>::at(const Row& row, int32_t slot) {
  return place_[static_cast<size_t>(row.token * walk_.slots() + slot)];
}

template <class T>
int64_t Mover<T>::row_bytes(Way way) const {
  const int64_t more = static_cast<int64_t>(sizeof(T) - sizeof(float)) * exchange_.hidden;
  return route_.row_bytes(way) + (route_.wire(way) == Wire::kFp32 ? more : 0);
}

template <class T>
void Mover<T>::exchange(Way way, int64_t hop, const std::function<void(const Row&, uint8_t*)>& make,
                        const std::function<void(const Row&, const uint8_t*)>& take) {
  const int64_t me = comm_.rank(), size = row_bytes(way);
  const auto ranks = static_cast<size_t>(exchange_.ranks);
  Pieces pieces;
  pieces.send_bytes.resize(ranks), pieces.receive_bytes.resize(ranks);
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.from == me) pieces.send_bytes[static_cast<size_t>(row.to)] += size;
    if (row.to == me) pieces.receive_bytes[static_cast<size_t>(row.from)] += size;
  });
  const auto buffer = [&](const std::vector<moe::Bytes>& bytes, std::vector<moe::Bytes>& offset) {
    offset.resize(ranks);
    std::exclusive_scan(bytes.begin(), bytes.end(), offset.begin(), moe::Bytes{0});
    return Bytes(static_cast<size_t>(offset.back() + bytes.back()));
  };
  Bytes send = buffer(pieces.send_bytes, pieces.send_offset);
  Bytes receive = buffer(pieces.receive_bytes, pieces.receive_offset);
  std::vector<moe::Bytes> next = pieces.send_offset;
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.from != me) return;
    if (row.token >= 0) make(row, send.data() + next[static_cast<size_t>(row.to)]);
    next[static_cast<size_t>(row.to)] += size;
  });
  for (size_t to = 0; to < ranks; ++to) {
    if (static_cast<int64_t>(to) == me) continue;
    sent_[static_cast<size_t>(way)][to] += pieces.send_bytes[to];
  }
  const CommTimes times = comm_.all_to_all(what_, send.data(), receive.data(), pieces);
  if (!times_) times_ = times;
  times_->end = times.end, times_->cpu = times.cpu;
  next = pieces.receive_offset;
  walk_.rows(way, hop, [&](const Row& row) {
    if (row.to != me) return;
    if (row.token >= 0) take(row, receive.data() + next[static_cast<size_t>(row.from)]);
    next[static_cast<size_t>(row.from)] += size;
  });
}

template <class T>
void Mover<T>::dispatch(const Own& own, const Take& take) {
  const Way way = Way::kDispatch;
  const int64_t me = comm_.rank(), size = row_bytes(way);
  Bytes held;
  for (int64_t hop = 0; hop < walk_.hops(way); ++hop) {
    Bytes came;
    exchange(
        way, hop,
        [&](const Row& row, uint8_t* out) {
          if (hop == 0) {
            encode(route_.wire(way), exchange_.hidden, own(row.token, row.slots[0]), out);
          } else {
            std::memcpy(out, held.data() + at(row, row.slots[0]), static_cast<size_t>(size));
          }
        },
        [&](const Row& row, const uint8_t* in) {
          for (const int32_t slot : row.slots) at(row, slot) = static_cast<int64_t>(came.size());
          came.insert(came.end(), in, in + size);
        });
    held = std::move(came);
  }
  Values values(static_cast<size_t>(exchange_.hidden));
  // The first hop back leaves from where slots are computed.
  walk_.rows(Way::kCombine, 0, [&](const Row& row) {
    if (row.from != me || row.token < 0) return;
    for (const int32_t slot : row.slots) {
      decode(route_.wire(way), exchange_.hidden, held.data() + at(row, slot), values.data());
      take(row.token, slot, values.data());
    }
  });
}

template <class T>
void Mover<T>::add_rows(const Row& row, const Values& held, T* sum) {
  std::vector<int64_t> added;
  for (const int32_t slot : row.slots) {
    if (std::find(added.begin(), added.end(), at(row, slot)) != added.end()) continue;
    added.push_back(at(row, slot));
    for (int64_t i = 0; i < exchange_.hidden; ++i) {
      sum[i] += held[static_cast<size_t>(added.back() + i)];
    }
  }
}

template <class T>
void Mover<T>::combine(const Make& make, const Add& add) {
  const Way way = Way::kCombine;
  const auto n = static_cast<size_t>(exchange_.hidden);
  Values held;
  for (int64_t hop = 0; hop < walk_.hops(way); ++hop) {
    Values came, values(n);
    const bool last = hop + 1 == walk_.hops(way);
    exchange(
        way, hop,
        [&](const Row& row, uint8_t* out) {
          Values sum(n), one(n);
          for (const int32_t slot : row.slots) {
            if (hop > 0) break;
            make(row.token, slot, one.data());
            std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
          }
          if (hop > 0) add_rows(row, held, sum.data());
          encode(route_.wire(way), exchange_.hidden, sum.data(), out);
        },
        [&](const Row& row, const uint8_t* in) {
          decode(route_.wire(way), exchange_.hidden, in, values.data());
          if (last) return add(row.token, row.slots, values.data());
          for (const int32_t slot : row.slots) at(row, slot) = static_cast<int64_t>(came.size());
          came.insert(came.end(), values.begin(), values.end());
        });
    held = std::move(came);
  }
}

template class Mover<float>;
template class Mover<double>;
template void encode(Wire, int64_t, const float*, void*);
template void encode(Wire, int64_t, const double*, void*);
template void decode(Wire, int64_t, const void*, float*);
template void decode(Wire, int64_t, const void*, double*);

}  // namespace moe::dispatch
