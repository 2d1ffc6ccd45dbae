/// Declares the words of the file for the variants of an enum.
macro_rules! choices {
    (
        $(#[$attribute:meta])*
        $name:ident => $target:ty { $($(#[$variant_attribute:meta])* $variant:ident => $value:expr,)+ }
    ) => {
        #[derive(Clone, Copy, Debug, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        $(#[$attribute])*
        pub(crate) enum $name {
            $($(#[$variant_attribute])* $variant,)+
        }

        impl From<$name> for $target {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$variant => $value,)+
                }
            }
        }
    };
}

pub(crate) use choices;
