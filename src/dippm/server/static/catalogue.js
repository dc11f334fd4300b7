// The devices that the service knows, and the MIG slices of each.

const AT = "@";

/** A device's memory, of one process, and the slices that it can be cut into. */
export class Catalogue {
  #devices;

  constructor(devices) {
    this.#devices = devices;
  }

  /** Everything that can be chosen: devices, newest first, then slices. `{name, group, note, words}`. */
  choices() {
    const devices = [...this.#devices].reverse();
    const cards = devices.map((device) => ({
      name: device.name,
      group: capitalise(device.architecture),
      note: `${formatGib(device.memory_mb)}${device.mig_profiles.length ? ", MIG" : ""}`,
      words: [device.name, device.architecture, ...device.aliases, device.mig_profiles.length ? "mig" : ""].join(" "),
    }));
    const slices = devices.flatMap((device) =>
      device.mig_profiles.map((profile) => ({
        name: `${profile.name}${AT}${device.name}`,
        group: `MIG slices of ${device.name}`,
        note: formatGib(profile.memory_mb),
        words: [profile.name, AT, device.name, device.architecture, ...device.aliases, "mig slice"].join(" "),
      })),
    );
    return [...cards, ...slices];
  }

  /** The catalogue's own name of a device that a link calls by another; the given one where it is not known. */
  properName(name) {
    const [slice, whole] = split(name);
    const found = this.#find(whole);
    if (!found) return name;
    return slice === null ? found.name : `${slice.toLowerCase()}${AT}${found.name}`;
  }

  /** What bounds the memory of a device or slice: `{capacity, isSlice, slices: [{name, memory_mb}]}`; null if unknown. */
  limits(name) {
    const [slice, whole] = split(name);
    const found = this.#find(whole);
    if (!found) return null;
    if (slice !== null) {
      const profile = found.mig_profiles.find((each) => each.name === slice);
      return profile ? { capacity: profile.memory_mb, isSlice: true, slices: [] } : null;
    }
    const slices = found.mig_profiles.map(({ name: profile, memory_mb }) => ({ name: profile, memory_mb }));
    return { capacity: found.usable_memory_mb ?? found.memory_mb, isSlice: false, slices };
  }

  #find(name) {
    const wanted = name.trim().toLowerCase();
    return (
      this.#devices.find((device) => device.name.toLowerCase() === wanted) ??
      this.#devices.find((device) => device.aliases.some((alias) => alias.toLowerCase() === wanted))
    );
  }
}

/** Whether memory of this interval fits: "yes", "no", or "unsure" where the capacity lies within. */
export function judge([low, high], capacity) {
  if (high <= capacity) return "yes";
  return low > capacity ? "no" : "unsure";
}

function split(name) {
  const place = name.indexOf(AT);
  return place < 0 ? [null, name] : [name.slice(0, place).trim(), name.slice(place + 1)];
}

function formatGib(memory_mb) {
  return `${Math.round(memory_mb / 102.4) / 10} GiB`;
}

function capitalise(word) {
  return word.charAt(0).toUpperCase() + word.slice(1);
}
