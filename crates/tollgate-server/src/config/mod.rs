//! What the service is told: policies, where they count, who may ask, and where it listens.

mod settings;

pub use settings::{
    Bind, Bounds, Credential, Descriptors, HeaderStyle, Headers, ResetStyle, Scope, Security,
    Settings, StoreSettings, TlsFiles,
};
