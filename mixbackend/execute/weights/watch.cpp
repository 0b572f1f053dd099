// Whether watched tensors are what they were. One call per call of a graph; holds the GIL, touches no Python object
// but through Python's and torch's own accessors, allocates nothing. Between two calls a model runs and drives all of
// this out of the caches: what is looked at next is fetched while something else is looked at.
#include <cstdint>
#include <cstring>
#include <ctime>

namespace {

using Word = std::uint64_t;

struct Region {  // memory whose checksum is known
    const char* begin;
    std::int64_t bytes;
    Word checksum;
};

struct Use {                // of all watches of the process
    const double* seconds;  // that calls of graphs have taken, written by whoever runs them
    double counted;         // of them, so many are in the credit
    double credit;          // nanoseconds that looking may take by now
    std::int64_t looks;
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
    std::int64_t large;             // the others, of which `samples` places each are looked at in turns
    const Region* large_regions;
    std::int64_t samples;
    Word* sample_checksums;         // turn by turn, in each of all large regions
    std::int64_t pieces;            // all memory of the large ones, looked at in turns
    const Region* piece_regions;
    Use* use;
    double share;                   // of the time of calls that goes into samples and pieces
    double period;                  // seconds of use in which all of both are wanted, once
    double seen;                    // seconds of use when they were looked at last
    std::int64_t looks;             // of all watches, until then
    double due_turns;               // of samples, beside the one of every call
    double due_pieces;
    std::int64_t turn;              // of samples, the next
    std::int64_t piece;             // the next
};

constexpr std::int64_t AHEAD = 16;  // so many tensors or regions are on their way while one is looked at
constexpr std::int64_t LINE = 64;
constexpr std::int64_t IMPLEMENTATION_BYTES = 4 * LINE;
constexpr int LANES = 8;
constexpr double MOST_DEBT = 1e5;  // nanoseconds that one look may have taken beyond what it was allowed
constexpr int GROUP = 4;  // pieces from one look at the clock to the next
constexpr std::int64_t STEP = 79;  // turns that follow one another lie far apart; odd, so that none of a power of two is left out

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

Word checksum_of(const char* place, std::int64_t bytes) {
    // Lanes that are polynomials in an odd factor: every bit of every word and its place counts.
    const Word factor = 0xd6e8feb86659fd93u;
    Word lanes[LANES];
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = 0x9e3779b97f4a7c15u * (2 * lane + 1);
    const char* end = place + bytes;
    for (; end - place >= 8 * LANES; place += 8 * LANES)
        for (int lane = 0; lane < LANES; ++lane) lanes[lane] = (lanes[lane] ^ load(place + 8 * lane, 8)) * factor;
    for (; end - place >= 8; place += 8) lanes[0] = (lanes[0] ^ load(place, 8)) * factor;
    lanes[1] = (lanes[1] ^ load(place, end - place)) * factor;
    Word sum = 0;
    for (Word lane : lanes) sum = (sum ^ (lane ^ (lane >> 32))) * factor;
    return sum;
}

Word checksum_of(const Region& region) { return checksum_of(region.begin, region.bytes); }

bool differs(const Region* regions, std::int64_t count) {
    for (std::int64_t place = 0; place < count; ++place) {
        if (place + AHEAD < count) fetch(regions[place + AHEAD].begin, regions[place + AHEAD].bytes);
        if (checksum_of(regions[place]) != regions[place].checksum) return true;
    }
    return false;
}

// A cache line of a large region. The region is cut into blocks, one for each turn; in its block the line lies
// anywhere, so that no stride of what is written misses all of them. Turns that follow one another are far apart.
const char* sample_of(const Watch* watch, std::int64_t turn, std::int64_t number) {
    const Region& region = watch->large_regions[number];
    const std::int64_t block = (turn * STEP + number * 31) % watch->samples;
    const std::int64_t size = region.bytes / watch->samples;
    const Word noise = static_cast<Word>(block * watch->large + number + 1) * 0x9e3779b97f4a7c15u;
    const std::int64_t jitter = size > LINE ? static_cast<std::int64_t>((noise >> 32) % (size - LINE)) : 0;
    const std::int64_t offset = (block * size + jitter) / LINE * LINE;
    return region.begin + (offset + LINE <= region.bytes ? offset : region.bytes - LINE);
}

// Looks at a turn's places, or learns them.
bool samples_differ(const Watch* watch, std::int64_t turn, bool learn) {
    Word* known = watch->sample_checksums + turn * watch->large;
    for (std::int64_t number = 0; number < watch->large; ++number) {
        if (number + AHEAD < watch->large) fetch(sample_of(watch, turn, number + AHEAD), LINE);
        const Word sum = checksum_of(sample_of(watch, turn, number), LINE);
        if (learn) known[number] = sum;
        else if (sum != known[number]) return true;
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
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * std::int64_t{1000000000} + time.tv_nsec;
}

double passed_since(std::int64_t begin) { return static_cast<double>(now() - begin); }

// Nanoseconds of the credit that this look may take: of several graphs that run in turns, each takes the same part.
// What nobody takes because nothing is due does not heap up.
double allowance(Watch* watch) {
    Use& use = *watch->use;
    const double turns = static_cast<double>(++use.looks - watch->looks);
    watch->looks = use.looks;
    const double most = turns * watch->share * watch->period * 1e9;
    if (use.credit > most) use.credit = most;
    use.credit += (*use.seconds - use.counted) * watch->share * 1e9;
    use.counted = *use.seconds;
    return use.credit / turns;
}

double due(double before, double fraction, std::int64_t all) {
    const double sum = before + fraction * static_cast<double>(all);
    return sum < static_cast<double>(all) ? sum : static_cast<double>(all);
}

bool next_samples_differ(Watch* watch) {
    const std::int64_t turn = watch->turn;
    watch->turn = (turn + 1) % watch->samples;
    return samples_differ(watch, turn, false);
}

bool next_piece_differs(Watch* watch) {
    const Region* piece = watch->piece_regions + watch->piece;
    watch->piece = (watch->piece + 1) % watch->pieces;
    if (watch->piece) fetch(watch->piece_regions[watch->piece].begin, 4 * LINE);
    return differs(piece, 1);
}

// More samples and pieces as calls have taken time since the last look, so that a second of use covers all of them,
// however long a call is: unless that takes more than `most` nanoseconds, counted from `begin`. Samples, which are quick,
// come before pieces.
bool due_content_differs(Watch* watch, std::int64_t begin, double most) {
    bool found = false;
    for (; !found && watch->due_turns >= 1 && passed_since(begin) < most; watch->due_turns -= 1)
        found = next_samples_differ(watch);
    for (; !found && watch->due_pieces >= GROUP && passed_since(begin) < most; watch->due_pieces -= GROUP)
        for (int step = 0; !found && step < GROUP; ++step) found = next_piece_differs(watch);
    return found;
}

// One turn of samples and one piece in every call, and what is due beside them. All of it is charged to the credit.
bool content_differs(Watch* watch) {
    const std::int64_t begin = now();
    const double most = allowance(watch);
    const double fraction = (*watch->use->seconds - watch->seen) / watch->period;
    watch->seen = *watch->use->seconds;
    watch->due_turns = due(watch->due_turns, fraction, watch->samples);
    watch->due_pieces = due(watch->due_pieces, fraction, watch->pieces);
    const bool found =
        next_samples_differ(watch) || next_piece_differs(watch) || due_content_differs(watch, begin, most);
    // Where other processes interrupted this look, it is not charged for their time.
    double& credit = watch->use->credit;
    const double left = credit - passed_since(begin);
    credit = left < -MOST_DEBT ? -MOST_DEBT : left;
    return found;
}

}  // namespace

// With `learn`: fills the checksums of all regions and returns 0. Else: 0 if nothing changed, else what did: 1 address,
// 2 version, 3 content; 4 if the list of arguments, where one is given, holds other tensors.
extern "C" std::int64_t mb_function(Watch* watch, std::int64_t learn, void* arguments) {
    if (learn) {
        Region* tables[2] = {const_cast<Region*>(watch->whole_regions), const_cast<Region*>(watch->piece_regions)};
        const std::int64_t counts[2] = {watch->whole, watch->pieces};
        for (int table = 0; table < 2; ++table)
            for (std::int64_t place = 0; place < counts[table]; ++place)
                tables[table][place].checksum = checksum_of(tables[table][place]);
        for (std::int64_t turn = 0; watch->large && turn < watch->samples; ++turn) samples_differ(watch, turn, true);
        watch->seen = *watch->use->seconds;
        watch->looks = watch->use->looks;
        return 0;
    }
    if (arguments && others(watch, arguments)) return 4;
    if (moved(watch)) return 1;
    if (written(watch)) return 2;
    if (differs(watch->whole_regions, watch->whole)) return 3;
    return watch->large && content_differs(watch) ? 3 : 0;
}
