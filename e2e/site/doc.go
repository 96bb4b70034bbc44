// Package site turns the repository's Markdown pages into a website that works without a network. Browsers can open the pages as files, and the
// search loads its index as a script. docs/README.md defines the navigation. The site has the same folders as the repository.
package site
