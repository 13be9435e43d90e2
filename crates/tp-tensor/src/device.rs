//! `Device`: where storage lives, with its text form. How memory is got on a device is in `runtime`.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Meta,
}

impl DeviceKind {
    pub const COUNT: usize = 3;
    pub const ALL: [DeviceKind; DeviceKind::COUNT] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Meta];

    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Meta => "meta",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A device. `cpu` and `meta` have the one index 0, which is not printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    pub kind: DeviceKind,
    pub index: u8,
}

impl Device {
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, index: 0 };
    pub const META: Device = Device { kind: DeviceKind::Meta, index: 0 };

    #[inline]
    pub const fn cuda(index: u8) -> Device {
        Device { kind: DeviceKind::Cuda, index }
    }

    #[inline]
    pub const fn is_cpu(self) -> bool {
        matches!(self.kind, DeviceKind::Cpu)
    }

    #[inline]
    pub const fn is_cuda(self) -> bool {
        matches!(self.kind, DeviceKind::Cuda)
    }

    #[inline]
    pub const fn is_meta(self) -> bool {
        matches!(self.kind, DeviceKind::Meta)
    }
}

impl Default for Device {
    fn default() -> Self {
        Device::CPU
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            kind => f.pad(kind.name()),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device {0:?}; write \"cpu\", \"meta\", \"cuda\" or \"cuda:<index>\"")]
pub struct ParseDeviceError(pub String);

impl FromStr for Device {
    type Err = ParseDeviceError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || ParseDeviceError(s.to_owned());
        let (name, index) = match s.split_once(':') {
            None => (s, 0),
            // `u8::from_str` accepts a leading '+'; a device text does not.
            Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                (name, digits.parse::<u8>().map_err(|_| bad())?)
            }
            Some(_) => return Err(bad()),
        };
        match (name, index) {
            ("cpu", 0) => Ok(Device::CPU),
            ("meta", 0) => Ok(Device::META),
            ("cuda", _) => Ok(Device::cuda(index)),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for (text, device) in [
            ("cpu", Device::CPU),
            ("meta", Device::META),
            ("cuda:0", Device::cuda(0)),
            ("cuda:255", Device::cuda(255)),
        ] {
            assert_eq!(text.parse::<Device>(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cuda".parse::<Device>(), Ok(Device::cuda(0)));
        assert_eq!("cpu:0".parse::<Device>(), Ok(Device::CPU));
    }

    #[test]
    fn bad_texts_are_errors() {
        for text in ["", "gpu", "cuda:", "cuda:256", "cuda:+1", "cuda:-1", "cpu:1", "cuda:0:0"] {
            assert_eq!(text.parse::<Device>(), Err(ParseDeviceError(text.into())), "{text}");
        }
    }
}
