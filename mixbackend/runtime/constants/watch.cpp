// Whether watched tensors are what they were. One call per call of a graph; holds the GIL, touches no Python object
// but through torch's own accessor, allocates nothing.
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
    void* const* pointers;          // their data pointers
    std::int64_t versioned;
    void* const* implementations;   // of aliases that share the version counters
    const std::int64_t* versions;
    void* (*data_pointer)(void* object);
    std::int64_t (*version)(void* const* implementation);
    std::int64_t whole;             // regions that are looked at in every call
    const Region* whole_regions;
    std::int64_t sampled;           // regions looked at in turns: `turns` groups of `sampled` each
    std::int64_t turns;
    const Region* sampled_regions;
    std::int64_t chunks;            // all memory in pieces, `chunks_per_call` of them in every call
    std::int64_t chunks_per_call;
    const Region* chunk_regions;
};

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
    for (std::int64_t place = 0; place < count; ++place)
        if (checksum_of(regions[place]) != regions[place].checksum) return true;
    return false;
}

}  // namespace

// With `call` below zero: fills the checksums of all regions and returns 0. Else: 0 if nothing changed, else what did:
// 1 address, 2 version, 3 content.
extern "C" std::int64_t mb_function(Watch* watch, std::int64_t call) {
    if (call < 0) {
        Region* tables[3] = {const_cast<Region*>(watch->whole_regions), const_cast<Region*>(watch->sampled_regions),
                             const_cast<Region*>(watch->chunk_regions)};
        const std::int64_t counts[3] = {watch->whole, watch->sampled * watch->turns, watch->chunks};
        for (int table = 0; table < 3; ++table)
            for (std::int64_t place = 0; place < counts[table]; ++place)
                tables[table][place].checksum = checksum_of(tables[table][place]);
        return 0;
    }
    for (std::int64_t place = 0; place < watch->tensors; ++place)
        if (watch->data_pointer(watch->objects[place]) != watch->pointers[place]) return 1;
    for (std::int64_t place = 0; place < watch->versioned; ++place)
        if (watch->version(&watch->implementations[place]) != watch->versions[place]) return 2;
    if (differs(watch->whole_regions, watch->whole)) return 3;
    if (watch->turns && differs(watch->sampled_regions + (call % watch->turns) * watch->sampled, watch->sampled)) return 3;
    if (!watch->chunks) return 0;
    std::int64_t place = (call * watch->chunks_per_call) % watch->chunks;
    for (std::int64_t step = 0; step < watch->chunks_per_call; ++step, place = (place + 1) % watch->chunks)
        if (differs(watch->chunk_regions + place, 1)) return 3;
    return 0;
}
