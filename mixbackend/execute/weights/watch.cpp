// Whether watched tensors are what they were. One call per call of a graph; holds the GIL, touches no Python object
// but through Python's and torch's own accessors, allocates nothing. Between two calls a model runs and drives all of
// this out of the caches: what is looked at next is fetched while something else is looked at.
#include <chrono>
#include <cstdint>
#include <cstring>

namespace {

using Word = std::uint64_t;

struct Region {  // memory whose checksum is known
    const char* begin;
    std::int64_t bytes;
    Word checksum;
};

struct Watch {
    std::int64_t tensors;
    void* const* objects;           // Python objects of the tensors
    const std::int64_t* places;     // theirs in the list of a call's arguments
    void* const* pointers;          // their data pointers
    void* const* owners;            // implementation and storage of each
    std::int64_t versioned;
    void* const* implementations;   // of aliases that share the version counters
    const std::int64_t* versions;
    void* (*item)(void* list, std::int64_t place);
    void* (*data_pointer)(void* object);
    std::int64_t (*version)(void* const* implementation);
    std::int64_t whole;             // regions that are looked at in every call
    const Region* whole_regions;
    std::int64_t sampled;           // regions looked at in turns: `turns` groups of `sampled` each
    std::int64_t turns;
    const Region* sampled_regions;
    std::int64_t chunks;            // all memory in pieces, looked at in turns
    const Region* chunk_regions;
    double share;                   // of the time from call to call that goes into pieces
    double most;                    // nanoseconds that they may take in one call
    double credit;                  // nanoseconds that they may take by now
    std::int64_t seen;              // the clock when they were looked at last
    std::int64_t next;              // the piece whose turn it is
};

constexpr std::int64_t AHEAD = 16;  // so many tensors or regions are on their way while one is looked at
constexpr std::int64_t LINE = 64;
constexpr std::int64_t IMPLEMENTATION_BYTES = 4 * LINE;

// Only a hint: the address need not be valid.
void fetch(const void* place, std::int64_t bytes) {
    for (std::int64_t offset = 0; offset < bytes; offset += LINE)
        __builtin_prefetch(static_cast<const char*>(place) + offset);
}

Word load(const char* place, std::int64_t bytes) {
    Word word = 0;
    std::memcpy(&word, place, bytes);
    return word;
}

Word checksum_of(const Region& region) {
    // Four lanes, each a polynomial in an odd factor: every bit of every word and its place counts.
    Word lanes[4] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0x2545f4914f6cdd1du};
    const Word factor = 0xd6e8feb86659fd93u;
    const char *place = region.begin, *end = region.begin + region.bytes;
    for (; end - place >= 32; place += 32)
        for (int lane = 0; lane < 4; ++lane) lanes[lane] = (lanes[lane] ^ load(place + 8 * lane, 8)) * factor;
    for (; end - place >= 8; place += 8) lanes[0] = (lanes[0] ^ load(place, 8)) * factor;
    lanes[1] = (lanes[1] ^ load(place, end - place)) * factor;
    Word sum = 0;
    for (Word lane : lanes) sum = (sum ^ (lane ^ (lane >> 32))) * factor;
    return sum;
}

bool differs(const Region* regions, std::int64_t count) {
    for (std::int64_t place = 0; place < count; ++place) {
        if (place + AHEAD < count) fetch(regions[place + AHEAD].begin, regions[place + AHEAD].bytes);
        if (checksum_of(regions[place]) != regions[place].checksum) return true;
    }
    return false;
}

bool others(const Watch* watch, void* arguments) {
    for (std::int64_t place = 0; place < watch->tensors; ++place)
        if (watch->item(arguments, watch->places[place]) != watch->objects[place]) return true;
    return false;
}

bool moved(const Watch* watch) {
    for (std::int64_t place = 0; place < watch->tensors; ++place) {
        if (const std::int64_t next = place + AHEAD; next < watch->tensors) {
            fetch(watch->objects[next], LINE);
            fetch(watch->owners[2 * next], IMPLEMENTATION_BYTES);
            fetch(watch->owners[2 * next + 1], LINE);
        }
        if (watch->data_pointer(watch->objects[place]) != watch->pointers[place]) return true;
    }
    return false;
}

bool written(const Watch* watch) {
    for (std::int64_t place = 0; place < watch->versioned; ++place) {
        if (place + AHEAD < watch->versioned) fetch(watch->implementations[place + AHEAD], IMPLEMENTATION_BYTES);
        if (watch->version(&watch->implementations[place]) != watch->versions[place]) return true;
    }
    return false;
}

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Pieces in turns, for as long as the share allows of the time that has passed since the last call: what calls and
// pauses between them take decides how much is looked at, so that the same time covers all memory whatever calls take.
bool pieces_differ(Watch* watch) {
    const std::int64_t begin = now();
    watch->credit += static_cast<double>(begin - watch->seen) * watch->share;
    watch->seen = begin;
    double used = 0;
    for (std::int64_t step = 0; step < watch->chunks && used < watch->credit && used < watch->most; ++step) {
        const Region* piece = watch->chunk_regions + watch->next;
        watch->next = (watch->next + 1) % watch->chunks;
        if (watch->next) fetch(watch->chunk_regions[watch->next].begin, LINE);
        if (differs(piece, 1)) return true;
        used = static_cast<double>(now() - begin);
        // Once around is enough, however long nobody called.
        if (step + 1 == watch->chunks) watch->credit = used;
    }
    watch->credit -= used;
    return false;
}

}  // namespace

// With `call` below zero: fills the checksums of all regions and returns 0. Else: 0 if nothing changed, else what did:
// 1 address, 2 version, 3 content; 4 if the list of arguments, where one is given, holds other tensors.
extern "C" std::int64_t mb_function(Watch* watch, std::int64_t call, void* arguments) {
    if (call < 0) {
        Region* tables[3] = {const_cast<Region*>(watch->whole_regions), const_cast<Region*>(watch->sampled_regions),
                             const_cast<Region*>(watch->chunk_regions)};
        const std::int64_t counts[3] = {watch->whole, watch->sampled * watch->turns, watch->chunks};
        for (int table = 0; table < 3; ++table)
            for (std::int64_t place = 0; place < counts[table]; ++place)
                tables[table][place].checksum = checksum_of(tables[table][place]);
        watch->seen = now();
        return 0;
    }
    if (arguments && others(watch, arguments)) return 4;
    if (moved(watch)) return 1;
    if (written(watch)) return 2;
    if (differs(watch->whole_regions, watch->whole)) return 3;
    if (watch->turns && differs(watch->sampled_regions + (call % watch->turns) * watch->sampled, watch->sampled)) return 3;
    return watch->chunks && pieces_differ(watch) ? 3 : 0;
}
