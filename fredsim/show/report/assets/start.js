"use strict";
// Before anything is painted: the colours that the system wants.
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = systemIsDark.matches ? "dark" : "light";
