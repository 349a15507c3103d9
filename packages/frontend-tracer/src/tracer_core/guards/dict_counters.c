/* Counts the changes of dictionaries: the callback of a dictionary watcher (CPython 3.12 and later).
   Plain C without headers of Python or torch: dict_counters.py registers it. Called with the GIL held.

   A counter lives as long as somebody holds it, so its address can be read after its dictionary has died. */
#include <stdint.h>
#include <stdlib.h>

struct counter {
  uint64_t changes;
  void *dict;     /* null once the dictionary has died */
  int64_t holders;
};

enum { DEALLOCATED = 5 };  /* of PyDict_WatchEvent */

static int (*watch)(int, void *), (*unwatch)(int, void *);
static int watcher;

/* An open hash table with linear probing; capacity is a power of two and at least twice `used`. */
static struct counter **table;
static uint64_t capacity, used;

static uint64_t place(const void *dict) {
  return ((uint64_t)dict >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20 & (capacity - 1);
}

/* The slot of a dictionary, or the empty one where it belongs. */
static uint64_t find(const void *dict) {
  uint64_t at = place(dict);
  while (table[at] && table[at]->dict != dict) at = (at + 1) & (capacity - 1);
  return at;
}

static int grow(void) {
  uint64_t old_capacity = capacity, new_capacity = capacity ? 2 * capacity : 1024;
  struct counter **old = table, **bigger = calloc(new_capacity, sizeof *old);
  if (!bigger) return -1;
  table = bigger;
  capacity = new_capacity;
  for (uint64_t i = 0; i < old_capacity; i++)
    if (old[i]) table[find(old[i]->dict)] = old[i];
  free(old);
  return 0;
}

static void drop(uint64_t at) {
  uint64_t mask = capacity - 1;
  table[at] = 0;
  used--;
  /* What was displaced by the slot moves up, so that searches do not stop at the gap. */
  for (uint64_t next = (at + 1) & mask; table[next]; next = (next + 1) & mask) {
    struct counter *moved = table[next];
    table[next] = 0;
    table[find(moved->dict)] = moved;
  }
}

/* CPython calls it before it changes a watched dictionary. */
int dict_counters_event(int event, void *dict, void *key, void *value) {
  uint64_t at = capacity ? find(dict) : 0;
  struct counter *counter = capacity ? table[at] : 0;
  (void)key, (void)value;
  if (counter) {
    counter->changes++;
    if (event == DEALLOCATED) {
      drop(at);
      counter->dict = 0;
    }
  }
  return 0;
}

void dict_counters_begin(void *watch_function, void *unwatch_function, int id) {
  watch = (int (*)(int, void *))watch_function;
  unwatch = (int (*)(int, void *))unwatch_function;
  watcher = id;
}

/* Holds a counter for each dictionary. Returns how many it holds: less than n if memory is short. */
int dict_counters_hold(int64_t n, void **dicts, struct counter **held) {
  for (int64_t i = 0; i < n; i++) {
    if (2 * used >= capacity && grow()) return (int)i;
    uint64_t at = find(dicts[i]);
    if (!table[at]) {
      struct counter *made = calloc(1, sizeof *made);
      if (!made) return (int)i;
      made->dict = dicts[i];
      table[at] = made;
      used++;
      watch(watcher, dicts[i]);
    }
    table[at]->holders++;
    held[i] = table[at];
  }
  return (int)n;
}

void dict_counters_release(int64_t n, struct counter **held) {
  for (int64_t i = 0; i < n; i++) {
    if (--held[i]->holders) continue;
    if (held[i]->dict) {
      unwatch(watcher, held[i]->dict);
      drop(find(held[i]->dict));
    }
    free(held[i]);
  }
}
