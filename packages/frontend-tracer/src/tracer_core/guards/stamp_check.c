/* The inner loop of a stamp: have these dictionaries, objects and tensors changed since?
   Plain C without headers of Python or torch: offsets are passed in, found and tested by native_check.py.
   Called with the GIL held. */
#include <stdint.h>
#include <string.h>

struct stamp {
  int64_t n_dicts, n_objects, n_tensors;
  char **dicts;          /* PyDictObject* */
  uint64_t *versions;    /* their ma_version_tag */
  char **objects;        /* PyObject* */
  char **types;          /* their ob_type */
  char **tensors;        /* THPVariable* */
  char **impls;          /* their TensorImpl* */
  char *metadata;        /* n_tensors * metadata_size bytes */
  int64_t version_offset, type_offset, impl_offset, metadata_offset, metadata_size;
};

void stamp_take(struct stamp *s) {
  for (int64_t i = 0; i < s->n_dicts; i++) s->versions[i] = *(uint64_t *)(s->dicts[i] + s->version_offset);
  for (int64_t i = 0; i < s->n_objects; i++) s->types[i] = *(char **)(s->objects[i] + s->type_offset);
  for (int64_t i = 0; i < s->n_tensors; i++) {
    s->impls[i] = *(char **)(s->tensors[i] + s->impl_offset);
    memcpy(s->metadata + i * s->metadata_size, s->impls[i] + s->metadata_offset, s->metadata_size);
  }
}

int stamp_holds(const struct stamp *s) {
  uint64_t moved = 0;
  for (int64_t i = 0; i < s->n_dicts; i++) moved |= s->versions[i] ^ *(uint64_t *)(s->dicts[i] + s->version_offset);
  if (moved) return 0;
  for (int64_t i = 0; i < s->n_objects; i++)
    if (s->types[i] != *(char **)(s->objects[i] + s->type_offset)) return 0;
  for (int64_t i = 0; i < s->n_tensors; i++) {
    char *impl = *(char **)(s->tensors[i] + s->impl_offset);
    if (impl != s->impls[i]) return 0; /* torch.utils.swap_tensors */
    if (memcmp(s->metadata + i * s->metadata_size, impl + s->metadata_offset, s->metadata_size)) return 0;
  }
  return 1;
}
