// Runs before anything is painted, so that the page does not flash in the other colours.
try {
  const theme = localStorage.getItem("pacegate-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing follows the system.
}
