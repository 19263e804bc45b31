//! Devices by the names that operators give them.

use piped_core::ids::DeviceId;

/// The name that operators give a device, `MAJOR:MINOR`, from the number as the kernel packs it
/// into 32 bits (`new_encode_dev`).
#[must_use]
pub fn device_name(device: DeviceId) -> String {
    let (major, minor) = (device.0 >> 8 & 0xfff, device.0 & 0xff | device.0 >> 12 & 0xf_ff00);
    format!("{major}:{minor}")
}

/// The device with these numbers; `None` if they do not fit the kernel's 32 bits.
#[must_use]
pub fn device_of(major: u32, minor: u32) -> Option<DeviceId> {
    let packed = || DeviceId(minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12);
    (major <= 0xfff && minor <= 0xf_ffff).then(packed)
}
